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

// The state of a simulated group.
namespace gradwire::pass_simulation {

// ---- The true state of contexts and passes, whatever the workers know.

struct ContextInfo {
  rpc::Id id;
  int origin = 0;
  Graph graph;
  bool opened = false;
  bool released = false;
  // By worker: bit set of the workers to which it sent messages in this context.
  std::array<uint32_t, kMaxWorkers> touched{};
};
struct PassInfo {
  rpc::Id id;
  int context = 0;
  int root = 0;
  bool fast = false;
  bool inputs_only = false;
  // The pass that must have ended before this one begins; -1: begins at once.
  int after = -1;
  std::vector<Edge> roots;
  std::vector<Edge> inputs;
  std::optional<Expected> expected;
  // The header of the pass. It does not change after the first message. Each worker gets its part of the
  // plan.
  bool planned = false;
  std::optional<autograd::Plan> plan;

  // At the root: its part, and the number of inputs requests that must be answered before the pass starts.
  int part = -1;
  int unanswered_inputs = 0;
  bool begun = false;
  bool completed = false;
  bool wave_over = false;
  absl::Status status;
  // The failures that occurred.
  bool node_failed = false;
  bool cancelled = false;
  bool timed_out = false;
  // Number of times that a gradient was shipped, by message and tensor, and kept, by node and input.
  std::vector<std::array<uint8_t, 8>> shipped;
  std::vector<std::array<uint8_t, 8>> kept;
  int messages_shipped = 0;
  int messages_arrived = 0;
};

// ---- The state of workers.

// A request that has not been answered yet.
struct OwedReply {
  uint64_t number;
  int arrival;
  // The request is a message of the wave (MARK or NEEDED).
  bool wave;
};
// The counterpart of autograd's Pass: one worker's part in one pass.
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
  // The worker has received a message of the pass other than the inputs request.
  bool took_part = false;
  bool ended = false;
  // The messages that were received, for coverage: sender and number of each MARK and NEEDED, message of each
  // RUN.
  std::vector<std::pair<int, uint64_t>> marks_received;
  std::vector<int> runs_received;
  bool finish_received = false;
};
// The counterpart of autograd's ContextState: a context at one worker.
struct Local {
  bool live = false;
  // The worker was notified of the end of the context by a worker that may end it.
  bool notified = false;
  // Bit sets of workers: those whose messages were served, and those that sent a CLEANUP.
  uint32_t served_from = 0;
  uint32_t cleanups_from = 0;
  std::vector<int> parts;
};
struct WorkerState {
  bool alive = true;
  // Bit set of the workers that this worker knows to be lost. It neither sends calls to them nor serves
  // theirs.
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
  // The part that waits for the answer, or -1.
  int part = -1;
  uint64_t number = 0;
  uint64_t low = 0;
  std::vector<Tensors> tensors;
  absl::Status reason;
  bool completed = false;
};
// A request that arrived at its receiver. Each arrival is answered once.
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
// The actions of a part that are performed after its mutex was unlocked.
struct PendingActions {
  int part = -1;
  std::vector<WaveMessage> wave;
  std::vector<uint64_t> numbers;
  autograd::PassState::Actions actions;
  bool drain = false;
};

}  // namespace gradwire::pass_simulation
