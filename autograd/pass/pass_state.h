#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::autograd {

// The state machine of one worker's part in the protocol of a backward pass (proto/autograd.proto): its
// methods take events and return actions. It does not know tensors. A worker is identified by its
// incarnation. A `reply` number, which the caller chooses, stands for a reply that is owed. A NEEDED is
// treated as a MARK: both are messages of the wave.
//
// States: the wave is under way; the pass runs; ended, with OK or an error. After the end the only actions
// are replies to messages, and the forwarding of an ABORT in the fast mode. Not thread-safe.
class PassState {
 public:
  struct Options {
    uint64_t self = 0;
    // The root's incarnation; equal to `self` at the root.
    uint64_t root = 0;
    bool fast = false;
  };

  // Work that the caller must do after it has released its locks.
  struct Actions {
    struct MarkAnswer {
      uint64_t reply;
      std::vector<uint64_t> participants;
    };
    struct FinishAnswer {
      uint64_t reply;
      std::vector<uint64_t> shipped_to;
    };
    std::vector<MarkAnswer> mark_answers;
    std::vector<FinishAnswer> finish_answers;
    // Replies to MARK and FINISH messages that must be answered with the error `status`.
    std::vector<uint64_t> failed_replies;
    // Workers to send FINISH to.
    std::vector<uint64_t> finish;
    // Workers to send ABORT to, with `status`.
    std::vector<uint64_t> abort;
    // At the root: the wave is over, and the gradients of the roots may be delivered.
    bool start_run = false;
    // This worker's part has ended with `status`, and its graph may be destroyed. At the root the whole pass
    // has ended.
    bool ended = false;
    absl::Status status;
  };

  explicit PassState(Options options);

  // ---- The wave.

  // Begins the walk of a MARK. Returns false if there is nothing to walk: the pass has failed or ended, or
  // the same MARK arrived before. The reply is then in `actions`, or follows with the reply to the first
  // MARK.
  bool begin_mark(uint64_t from, uint64_t number, uint64_t reply, Actions& actions);
  // Begins the walk of the root.
  void begin_root();
  // Ends the walk that was begun last. `marked` has the receiver of each MARK that the walk causes. Returns
  // the number of each of these MARKs; empty if the pass has ended. If the walk failed, call fail() instead.
  std::vector<uint64_t> end_walk(const std::vector<uint64_t>& marked, Actions& actions);
  void mark_answered(uint64_t number, const std::vector<uint64_t>& participants, Actions& actions);

  // Begins a planned pass at the root: the participants are known without a wave. The workers in `shipped_to`
  // get a RUN from the root, which is also a FINISH; the other participants are sent a FINISH.
  void begin_planned(const std::vector<uint64_t>& participants, const std::vector<uint64_t>& shipped_to,
                     Actions& actions);

  // ---- The run.

  // Adds `n` events to the number of expected ones: nodes that will run, or messages with gradients that will
  // arrive.
  void counted(uint64_t n) { remaining_ += n; }
  // Records that `n` of the expected events have happened.
  void ran(uint64_t n, Actions& actions);
  // Records that the gradients of a message arrived. Returns false if they had arrived before, or if the pass
  // has ended.
  bool run_arrived(uint64_t from, uint64_t message);
  // Records that gradients are about to be shipped to worker `to`, and that the worker has answered.
  void shipping(uint64_t to);
  void shipping_answered(uint64_t to, Actions& actions);

  // ---- The end.

  // Processes a FINISH that arrived.
  void finish_asked(uint64_t reply, Actions& actions);
  // Processes the answer to a FINISH.
  void finish_answered(uint64_t worker, const std::vector<uint64_t>& shipped_to, Actions& actions);
  // Ends the pass with an error. Later errors are ignored.
  void fail(absl::Status status, Actions& actions);
  // Processes an ABORT that arrived. In the fast mode it is forwarded even if this part has ended with OK.
  void abort_asked(absl::Status status, Actions& actions);
  // Fails the pass if it depends on `worker`.
  void worker_lost(uint64_t worker, const absl::Status& status, Actions& actions);
  // Records that the pass fails if `worker` is lost.
  void depends_on(uint64_t worker) { partners_.insert(worker); }

  bool ended() const { return ended_; }
  // OK unless the pass has failed.
  const absl::Status& status() const { return status_; }
  uint64_t remaining() const { return remaining_; }
  // The state for observers.
  struct View {
    // The run has started.
    bool running = false;
    uint64_t remaining = 0;
    // Gradients were sent whose receiver has not answered. PassPart adds whether nodes run now.
    bool busy = false;
    // At the root: the workers that must answer before the pass can go on. Empty at the end.
    std::vector<uint64_t> awaited;
  };
  View view() const;

 private:
  // The state of a MARK that arrived, or of the root's own walk. It is kept after the answer, for
  // repetitions.
  struct MarkState {
    // Number of MARKs that the walk caused and that are not answered.
    std::size_t unanswered = 0;
    bool walked = false;
    bool answered = false;
    std::vector<uint64_t> replies;
    absl::btree_set<uint64_t> participants;
  };
  // The sender and the number of a MARK.
  using WaveKey = std::pair<uint64_t, uint64_t>;

  void finish_wave_if_over(MarkState& wave, bool root, Actions& actions);
  // Sends a FINISH to `worker`, once.
  void ask_to_finish(uint64_t worker, Actions& actions);
  void end_if_done(Actions& actions);
  std::vector<uint64_t> shipped_to() const { return {shipped_to_.begin(), shipped_to_.end()}; }

  const Options options_;

  HashMap<WaveKey, MarkState> waves_;
  // The walk that was begun last.
  WaveKey walking_;
  uint64_t next_mark_ = 1;
  // The MARKs that were sent and not answered, by number, and the walk that caused each.
  HashMap<uint64_t, WaveKey> sent_marks_;

  // The workers that this worker has sent MARK, RUN or FINISH to. ABORT is sent to them.
  absl::btree_set<uint64_t> reached_;
  // The workers whose loss fails the pass.
  HashSet<uint64_t> partners_;

  // Number of expected events that have not happened.
  uint64_t remaining_ = 0;
  // The messages whose gradients have arrived.
  HashSet<uint64_t> arrived_;
  uint64_t unanswered_shipments_ = 0;
  absl::btree_set<uint64_t> shipped_to_;
  std::vector<uint64_t> finish_replies_;

  // The run has started: the wave is over, or the pass has no wave.
  bool running_ = false;
  // At the root: the workers that must finish, and those that have.
  absl::btree_set<uint64_t> asked_;
  absl::btree_set<uint64_t> finished_;

  bool ended_ = false;
  // An ABORT that arrived after this part had ended with OK has been forwarded.
  bool passed_on_ = false;
  absl::Status status_;
};

}  // namespace gradwire::autograd
