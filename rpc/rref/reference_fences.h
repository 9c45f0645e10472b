#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/reference_actions.h"
#include "gradwire/rpc/rref/reference_message.h"
#include "gradwire/rpc/rref/reference_peers.h"

namespace gradwire::rpc {

// The fences of one worker (docs/rref.md, "Deaths"): its own, and those of others that it cannot answer yet.
// A pure state machine.
//
// Its own fence is due once something is kept because of a lost worker. It runs, and the members are asked,
// when the log has the ends of all lost workers. Another loss begins it anew. It ends when all who were asked
// have answered.
//
// Not thread-safe.
class ReferenceFences {
 public:
  // `member` has just been lost. `keeps`: something is kept because of it.
  void lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions);
  // The log has the end of `member`. True when that made the fence run.
  bool agree(uint64_t member, ReferencePeers& peers, ReferenceActions& actions);
  // The receiver of `fence` has answered it. True when it was waited for.
  bool take_answer(const ReferenceMessage& fence);

  // `asker` asks this worker. No answer: it comes from end_ready().
  std::optional<ReferenceMessage::Answer> ask(uint64_t asker, const ReferenceMessage& fence,
                                              const ReferencePeers& peers, ReferenceActions& actions);
  // Ends this worker's fence and answers those of others, where that is possible by now. True when it has
  // ended: what is kept for the lost may go.
  bool end_ready(const HolderTable& holder, const GoneWorkers& lost, ReferenceActions& actions);

  // Something is kept because of the dead.
  bool due() const { return due_; }
  // The others are being asked.
  bool running() const { return running_; }
  uint64_t round() const { return round_; }
  // Questions of others that cannot be answered yet.
  std::size_t unanswered() const { return asked_.size(); }
  // Lost workers whose fence has not begun.
  std::size_t unfenced() const { return unfenced_.size() + agreed_.size(); }

  // Fences in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const ReferenceFences& fences) {
    const ReferenceFences& f = fences;
    return H::combine(std::move(hash), f.due_, f.running_, f.unfenced_, f.agreed_, f.round_, f.waiting_for_,
                      f.asked_);
  }

 private:
  void start(ReferencePeers& peers, ReferenceActions& actions);

  bool due_ = false;
  bool running_ = false;
  // Lost, and it is not certain yet who must be asked.
  absl::flat_hash_set<uint64_t> unfenced_;
  // The opposite: certain before the loss was heard of, which another thread may be about to tell.
  absl::flat_hash_set<uint64_t> agreed_;
  uint64_t round_ = 0;
  absl::flat_hash_set<uint64_t> waiting_for_;

  // Fences of others that wait here: asker -> round and dead.
  struct Asked {
    uint64_t round = 0;
    std::vector<uint64_t> dead;
    template <class H>
    friend H AbslHashValue(H hash, const Asked& asked) {
      return H::combine(std::move(hash), asked.round, asked.dead);
    }
  };
  absl::flat_hash_map<uint64_t, Asked> asked_;
};

}  // namespace gradwire::rpc
