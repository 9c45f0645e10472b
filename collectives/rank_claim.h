#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/store.h"

namespace gradwire::collectives {

// That a process comes to a world as one of its ranks, so that a second one with the same rank is told, and tells the
// first, instead of both waiting for the rank that is missing.
//
// The worlds of one name in one store are numbered by each rank's joins: who comes as a rank for the second time is in the
// second world. So a second process looks for the one before it: has the world of that one not come together yet, then
// there are two.
class RankClaim {
 public:
  // Counts the join. AlreadyExists, which names the rank and both processes, when another is waiting as this rank; the
  // ranks that wait with it hear the same. `round`: the key, in world(), of the refusable Agreement that a world comes
  // together by. Errors else: the store's.
  static absl::StatusOr<RankClaim> take(std::shared_ptr<store::Store> book, int rank,
                                        absl::string_view round);

  // Where the keys of this world go; others may use the store, and worlds before this one have.
  const std::shared_ptr<store::Store>& world() const { return world_; }

  // The join has failed: this rank may be taken again. Returns `reason`; when that is a timeout and another process, which
  // may still be there, came as this rank to the world before, with its name.
  absl::Status release(const absl::Status& reason) const;

 private:
  RankClaim() = default;

  std::shared_ptr<store::Store> book_;
  std::shared_ptr<store::Store> world_;
  std::string key_;
  int rank_ = 0;
  // "process 7 on host-a"; empty when there was none.
  std::string other_;
};

}  // namespace gradwire::collectives
