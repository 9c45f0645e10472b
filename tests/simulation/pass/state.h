#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/autograd/context/context_table.h"
#include "gradwire/autograd/pass/pass_state.h"
#include "gradwire/autograd/pass/plan.h"
#include "gradwire/tests/simulation/pass/executor.h"
#include "gradwire/tests/simulation/pass/graph.h"

// What there is in a simulated group.
namespace gradwire::pass_simulation {

// ---- Contexts and passes as they are, whatever the workers know.

struct ContextInfo {
  rpc::Id id;
  int origin = 0;
  Graph graph;
  bool opened = false;
  bool released = false;
  // By worker: whom it recorded, as bits.
  std::array<uint32_t, kMaxWorkers> touched{};
};
struct PassInfo {
  rpc::Id id;
  int context = 0;
  int root = 0;
  bool fast = false;
  bool inputs_only = false;
  // After another pass has ended; -1: at once.
  int after = -1;
  std::vector<Edge> roots;
  std::vector<Edge> inputs;
  std::optional<Expected> expected;
  // The header: const once a message has been sent. Of the plan each worker gets its part.
  bool planned = false;
  std::optional<autograd::Plan> plan;

  // At the root: its part, and answers that are owed before it starts.
  int part = -1;
  int unheld = 0;
  bool begun = false;
  bool completed = false;
  bool wave_over = false;
  absl::Status status;
  // What went wrong.
  bool node_failed = false;
  bool cancelled = false;
  bool timed_out = false;
  // Gradients shipped by message and tensor, and kept by node and input.
  std::vector<std::array<uint8_t, 8>> shipped;
  std::vector<std::array<uint8_t, 8>> kept;
  int messages_shipped = 0;
  int messages_arrived = 0;
};

// ---- What workers hold.

struct OwedReply {
  uint64_t number;
  int arrival;
  // Of a message of the wave.
  bool wave;
};
// Pass: one worker's part in one pass.
struct Part {
  Part(int worker, int pass, const PassInfo& info, const Graph& graph)
      : worker(worker),
        pass(pass),
        state({.self = incarnation(worker), .root = incarnation(info.root), .fast = info.fast}),
        executor(graph, info.inputs_only) {}
  const int worker;
  const int pass;
  autograd::PassState state;
  Executor executor;
  std::vector<OwedReply> replies;
  uint64_t next_reply = 1;
  bool begun = false;
  bool draining = false;
  Executor::Task task;
  autograd::PassState::Actions drained;
  // Something of the pass was heard here, more than which inputs are wanted.
  bool took_part = false;
  bool ended = false;
  // Messages of the wave that came, for coverage.
  std::vector<std::pair<int, uint64_t>> heard;
  std::vector<int> runs;
  bool finish_heard = false;
};
// ContextState.
struct Local {
  bool live = false;
  // It was told of the end, by one who may end it.
  bool told = false;
  // Whose messages it has served, and who said the end but may not end it, as bits.
  uint32_t heard = 0;
  uint32_t told_by = 0;
  std::vector<int> parts;
};
struct WorkerState {
  bool alive = true;
  // Whom it knows to be lost, as bits: no call of theirs is taken, none goes there.
  uint32_t lost = 0;
  autograd::ContextTable table;
  std::vector<Local> contexts;
  uint64_t next_counter = 1;
};

// ---- Messages.

struct WaveMessage {
  int to = 0;
  bool needed = false;
  std::vector<Tensors> tensors;
};
struct Call {
  enum class Kind : uint8_t { kMark, kNeeded, kRun, kFinish, kAbort, kCleanup, kForward, kInputs };
  Kind kind = Kind::kMark;
  int from = 0;
  int to = 0;
  int pass = -1;
  int context = -1;
  // The part that waits for the answer; -1: none does.
  int part = -1;
  uint64_t number = 0;
  uint64_t low = 0;
  std::vector<Tensors> tensors;
  absl::Status reason;
  bool completed = false;
};
// A request on its receiver; each is answered once.
struct Arrival {
  int call = 0;
  int stage = 0;
  int part = -1;
  bool answered = false;
};
struct Answer {
  int call = 0;
  absl::Status status;
  std::vector<uint64_t> workers;
};
// What is done after a lock was let go of.
struct Aftermath {
  int part = -1;
  std::vector<WaveMessage> wave;
  std::vector<uint64_t> numbers;
  autograd::PassState::Actions actions;
  bool drain = false;
};

}  // namespace gradwire::pass_simulation
