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

// The fences of one worker (docs/rref.md, "Deaths"): its own fence, and the fences of others that it cannot
// answer yet. A pure state machine.
//
// 1. The worker's own fence is due when something is kept because of a lost worker.
// 2. It runs when the log has the ends of all lost workers. Then all members are asked.
// 3. Another loss starts it again.
// 4. It ends when all members that were asked have answered.
//
// Not thread-safe.
class ReferenceFences {
 public:
  // `member` was just lost. `keeps`: something is kept because of it.
  void lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions);
  // The log has the end of `member`. Returns true when this started the fence.
  bool agree(uint64_t member, ReferencePeers& peers, ReferenceActions& actions);
  // The receiver of `fence` has answered it. Returns true when this answer was awaited.
  bool take_answer(const ReferenceMessage& fence);

  // `asker` asks this worker. nullopt: the answer follows from end_ready().
  std::optional<ReferenceMessage::Answer> ask(uint64_t asker, const ReferenceMessage& fence,
                                              const ReferencePeers& peers, ReferenceActions& actions);
  // Ends this worker's fence, and answers the fences of others, if that is possible now. Returns true when
  // this worker's fence has ended: then what is kept because of lost workers may be dropped.
  bool end_ready(const HolderTable& holder, const GoneWorkers& lost, ReferenceActions& actions);

  // Whether something is kept because of lost workers.
  bool due() const { return due_; }
  // Whether the other members are being asked.
  bool running() const { return running_; }
  uint64_t round() const { return round_; }
  // Number of fences of others that cannot be answered yet.
  std::size_t unanswered() const { return asked_.size(); }
  // Number of lost workers whose fence has not started.
  std::size_t unfenced() const { return unfenced_.size() + agreed_.size(); }

  // Fences in the same state have the same hash. Used to explore states in tests.
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
  // Lost workers whose end has not been read in the log, so that the set of members is not certain.
  absl::flat_hash_set<uint64_t> unfenced_;
  // Workers whose end has been read in the log, but whose loss has not been reported by the other thread yet.
  absl::flat_hash_set<uint64_t> agreed_;
  uint64_t round_ = 0;
  absl::flat_hash_set<uint64_t> waiting_for_;

  // Fences of others that wait for this worker: asker -> round and dead workers.
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
