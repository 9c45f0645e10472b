#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/tests/simulation/pass/graph.h"

namespace gradwire::pass_simulation {

// What autograd::LocalExecutor does, without tensors: one worker's graph in one pass. The same functions with
// the same meaning; see there. A gradient is only counted.
class Executor {
 public:
  // Messages to be told of: MARK goes to their senders, NEEDED to their receivers.
  struct Reach {
    std::vector<Tensors> marked;
    std::vector<Tensors> needed;
  };
  struct Task {
    int node = -1;
    // Of a recv node: outputs to ship.
    uint8_t shipped = 0;
  };

  Executor(const Graph& graph, bool inputs_only) : graph_(graph), inputs_only_(inputs_only) {}

  void add_input(const Edge& input);
  void mark_roots(const std::vector<Edge>& roots, Reach& reach);
  void mark_outputs(const Tensors& tensors, Reach& reach);
  // False when they were not marked.
  bool need_outputs(const Tensors& tensors, Reach& reach);
  uint64_t take_counted() { return inputs_only_ && !runs_ ? 0 : std::exchange(counted_, 0); }
  void begin_run();

  void deliver_roots();
  // False when it is not awaited, or these are not the tensors.
  bool deliver_message(const Tensors& tensors);
  bool next(Task& task, Random& random);
  // Gradients that a node keeps when it has run, as bits of its inputs.
  uint8_t kept(const Task& task) const;
  void finished(const Task& task);

 private:
  struct From {
    enum class What : uint8_t { kRecord, kSent, kRoot } what;
    int input;
    // The node or the message, and its tensor.
    int index;
    int output;
  };
  struct Record {
    bool visited = false;
    bool needed = false;
    uint8_t captured = 0;
    uint8_t marked = 0;
    uint8_t needed_outputs = 0;
    int missing = 0;
    std::vector<From> from;
  };
  struct Sent {
    bool known = false;
    bool arrived = false;
    uint8_t marked = 0;
    uint8_t needed = 0;
  };

  void prepare();
  void count(const Edge& edge, const From& from, Reach& reach);
  void walk(Reach& reach);
  void follow_needs(Reach& reach);
  bool is_live(int node, int input) const;
  bool is_live(const From& from) const;
  void deliver(const Edge& edge);
  static void add(std::vector<Tensors>& list, int message, int output);

  const Graph& graph_;
  const bool inputs_only_;
  std::vector<Record> records_;
  std::vector<Sent> sent_;
  std::vector<Edge> roots_;
  std::vector<int> unwalked_;
  std::vector<From> needs_;
  std::vector<int> ready_;
  uint64_t counted_ = 0;
  bool runs_ = false;
};

}  // namespace gradwire::pass_simulation
