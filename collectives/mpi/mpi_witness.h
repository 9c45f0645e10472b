#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives {

// MPI cannot tell who did not come to a collective, nor that a member has left the group. So a member says in
// the group's store which collective it has been waiting in for a while, and that it leaves; the others look
// there when they have waited for a while themselves. What goes fast costs nothing. wait_in() is for one
// thread at a time, everything else thread-safe.
class MpiWitness {
 public:
  MpiWitness(std::shared_ptr<store::Store> store, int rank, int size);

  // This rank waits in the collective of this number, from 1 up. Said once for each.
  void wait_in(uint64_t number);
  // Unavailable or Aborted that names a rank that left before it had finished the collective. Asks the store.
  absl::Status departures(uint64_t number);
  // Whether the rank has left, whatever it had finished. Asks the store.
  bool has_left(int rank);
  // "no word from rank 1, rank 3", of the collective; empty if all are known to have come. Asks the store.
  std::string missing(uint64_t number);
  // `finished`: the number of the last collective that has ended here. An empty reason: in good order.
  void leave(uint64_t finished, absl::string_view reason);

 private:
  std::optional<std::string> look(absl::string_view what, int rank);

  const std::shared_ptr<store::Store> store_;
  const int rank_;
  const int size_;
  uint64_t said_ = 0;
};

}  // namespace gradwire::collectives
