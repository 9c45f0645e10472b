#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

namespace gradwire::autograd {

// One worker's part in the protocol of a backward pass (proto/autograd.proto): events in, actions out. It
// knows nothing of tensors; workers are incarnations; `reply` numbers stand for answers that are owed and are
// the caller's own. NEEDED is to it what MARK is: a message of the wave.
//
// States: the wave is under way; the pass runs; ended, well or not. Once ended nothing more comes out of it
// but answers to messages that arrive again. Not thread-safe.
class PassState {
 public:
  struct Options {
    uint64_t self = 0;
    // The root's incarnation; equal to `self` at the root.
    uint64_t root = 0;
    bool fast = false;
  };

  // The work left to the caller, after it has released its locks.
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
    // Replies that are owed `status` (an error), MARK's and FINISH's alike.
    std::vector<uint64_t> failed_replies;
    // Workers to send FINISH to.
    std::vector<uint64_t> finish;
    // Workers to send ABORT to, with `status`.
    std::vector<uint64_t> abort;
    // At the root: the wave is over, the gradients of the roots may be delivered.
    bool start_run = false;
    // This worker's part has ended, well or with `status`: what it held may go. At the root: so has the pass.
    bool ended = false;
    absl::Status status;
  };

  explicit PassState(Options options);

  // ---- The wave.

  // A walk begins: that of a MARK, or the root's own. False when this MARK came before: its answer is in
  // `actions`, or will come with the first one's.
  bool begin_mark(uint64_t from, uint64_t number, uint64_t reply, Actions& actions);
  void begin_root();
  // The walk that began last is over and `marked` holds the receiver of each MARK it calls for. Returns a
  // number for each: the MARK's own. With an error of the walk the pass fails.
  std::vector<uint64_t> end_walk(const std::vector<uint64_t>& marked, Actions& actions);
  void mark_answered(uint64_t number, const std::vector<uint64_t>& participants, Actions& actions);

  // At the root, instead of a wave: the participants are known. Those in `shipped_to` learn of the pass from
  // the root's own gradients, whose answer then is that to FINISH; the others are asked.
  void begin_planned(const std::vector<uint64_t>& participants, const std::vector<uint64_t>& shipped_to,
                     Actions& actions);

  // ---- The run.

  // Nodes, or gradients from other workers, that have been counted, or that have come to pass.
  void counted(uint64_t n) { remaining_ += n; }
  void ran(uint64_t n, Actions& actions);
  // The gradients of a message arrived. False when they did before, or the pass has ended.
  bool run_arrived(uint64_t from, uint64_t message);
  void shipping(uint64_t to);
  void shipping_answered(uint64_t to, Actions& actions);

  // ---- The end.

  void finish_asked(uint64_t reply, Actions& actions);
  void finish_answered(uint64_t worker, const std::vector<uint64_t>& shipped_to, Actions& actions);
  // The first error ends the pass; the rest are ignored.
  void fail(absl::Status status, Actions& actions);
  // An ABORT has come. It goes on also from a part that had ended well.
  void abort_asked(absl::Status status, Actions& actions);
  // Fails the pass if `worker` has a part in it.
  void worker_lost(uint64_t worker, const absl::Status& status, Actions& actions);
  // Makes `worker` one whose loss fails the pass.
  void depends_on(uint64_t worker) { partners_.insert(worker); }

  bool ended() const { return ended_; }
  // OK while it has not failed.
  const absl::Status& status() const { return status_; }
  uint64_t remaining() const { return remaining_; }

 private:
  // A MARK (or the root's own walk), until and after it is answered.
  struct Wave {
    std::size_t unanswered = 0;
    bool walked = false;
    bool answered = false;
    std::vector<uint64_t> replies;
    absl::btree_set<uint64_t> participants;
  };
  using WaveKey = std::pair<uint64_t, uint64_t>;

  void finish_wave_if_over(Wave& wave, bool root, Actions& actions);
  void ask_to_finish(uint64_t worker, Actions& actions);
  void end_if_done(Actions& actions);
  std::vector<uint64_t> shipped_to() const { return {shipped_to_.begin(), shipped_to_.end()}; }

  const Options options_;

  absl::flat_hash_map<WaveKey, Wave> waves_;
  WaveKey walking_;
  uint64_t next_mark_ = 1;
  // MARKs sent: whose walk each belongs to.
  absl::flat_hash_map<uint64_t, WaveKey> sent_marks_;

  // The workers that this one has marked or shipped to: ABORT goes there. Then the others that it depends on.
  absl::btree_set<uint64_t> reached_;
  absl::flat_hash_set<uint64_t> partners_;

  uint64_t remaining_ = 0;
  absl::flat_hash_set<uint64_t> arrived_;
  uint64_t unanswered_shipments_ = 0;
  absl::btree_set<uint64_t> shipped_to_;
  std::vector<uint64_t> finish_replies_;

  // At the root: whom it asked to finish, and who has.
  bool running_ = false;
  absl::btree_set<uint64_t> asked_;
  absl::btree_set<uint64_t> finished_;

  bool ended_ = false;
  // An ABORT that came after this part had ended well has been passed on.
  bool passed_on_ = false;
  absl::Status status_;
};

}  // namespace gradwire::autograd
