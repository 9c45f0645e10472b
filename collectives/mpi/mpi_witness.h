#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives {

// Detects missing members of a group. MPI does not report which ranks did not arrive at a collective, or that
// a member has left. So a member that has waited for a while writes to the group's store which collective it
// waits in, and a member that leaves writes that too. Members that have waited for a while read these keys. A
// fast collective does not use the store.
//
// Keys: mpi/at/RANK (the collective that the rank waits in), mpi/left/RANK (the last collective that it
// finished, and the reason). report_waiting() may be called by one thread at a time; all other methods are
// thread-safe.
class MpiWitness {
 public:
  MpiWitness(std::shared_ptr<store::Store> store, int rank, int size);

  // Writes that this rank waits in the collective with this number; numbers start at 1. Writes once for each
  // number.
  void report_waiting(uint64_t number);
  // Returns Unavailable or Aborted, which names the rank, if a rank left before it had finished the
  // collective. Reads the store.
  absl::Status check_departures(uint64_t number);
  // Whether the rank has left, regardless of the collectives that it had finished. Reads the store.
  bool has_left(int rank);
  // For messages: "no report from rank 1, rank 3" for the ranks that are not known to have arrived at the
  // collective; empty if all have. Reads the store.
  std::string missing(uint64_t number);
  // Writes that this rank leaves. `finished`: the number of the last collective that has ended on this rank.
  // An empty reason means that it leaves without an error.
  void report_leaving(uint64_t finished, absl::string_view reason);

 private:
  std::optional<std::string> read(absl::string_view what, int rank);

  const std::shared_ptr<store::Store> store_;
  const int rank_;
  const int size_;
  // The last collective that report_waiting() has written.
  uint64_t reported_ = 0;
};

}  // namespace gradwire::collectives
