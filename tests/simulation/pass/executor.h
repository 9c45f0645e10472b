#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/tests/simulation/pass/graph.h"

namespace gradwire::pass_simulation {

// A model of autograd::LocalExecutor without tensors: it executes one worker's graph in one pass, but only
// counts gradients. Its functions have the meaning of those of LocalExecutor, where they are documented.
class Executor {
 public:
  // The messages that a walk reached. MARK is to be sent to the senders of `marked`, NEEDED to the receivers
  // of `needed`.
  struct Reach {
    std::vector<Tensors> marked;
    std::vector<Tensors> needed;
  };
  struct Task {
    int node = -1;
    // Recv nodes only: bit set of the outputs to ship.
    uint8_t shipped = 0;
  };

  Executor(const Graph& graph, bool inputs_only) : graph_(graph), inputs_only_(inputs_only) {}

  void add_input(const Edge& input);
  void mark_roots(const std::vector<Edge>& roots, Reach& reach);
  void mark_outputs(const Tensors& tensors, Reach& reach);
  // Returns false if the tensors were not marked before.
  bool need_outputs(const Tensors& tensors, Reach& reach);
  uint64_t take_counted() { return inputs_only_ && !runs_ ? 0 : std::exchange(counted_, 0); }
  void begin_run();

  void deliver_roots();
  // Returns false if the message is not expected, or its tensors are not the marked ones.
  bool deliver_message(const Tensors& tensors);
  bool next(Task& task, Random& random);
  // Bit set of the inputs whose gradients the node keeps after it has run.
  uint8_t kept(const Task& task) const;
  void finished(const Task& task);

 private:
  // An edge's start: the gradient for `input` comes from there.
  struct From {
    enum class What : uint8_t { kRecord, kSent, kRoot } what;
    int input;
    // kRecord: the node. kSent: the message, and the tensor in `output`.
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
