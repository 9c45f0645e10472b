#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/mpi/mpi_member.h"

namespace gradwire::collectives {

// How far a member is in its group's collectives, which are numbered from 1 up.
struct MpiProgress {
  // Only for the one thread that calls collectives.
  uint64_t begun = 0;
  // Read when the group is left, too.
  std::atomic<uint64_t> finished{0};
};

// One collective of one member: MPI's nonblocking calls, polled until they have ended or the deadline has
// come.
//
//   1. begin() starts a call of MPI's, or several.
//   2. finish() polls until all have ended. When that is slow it writes into the store that this rank waits
//      here, and asks there who has left.
//   3. An error breaks the group, since the others may have begun theirs: what is under way is left to MPI.
//
// For the thread that calls collectives.
class MpiCollective {
 public:
  // `progress.begun` is this collective's number.
  MpiCollective(MpiMember& member, const MpiProgress& progress, const char* name, absl::Time deadline)
      : member_(member), progress_(progress), name_(name), deadline_(deadline) {}

  // Keeps tensors while MPI uses them, in the place of those kept before.
  void keep(std::vector<at::Tensor> tensors) { tensors_ = std::move(tensors); }
  // Begins a call of MPI's: `start` is given its request.
  template <class Start>
  absl::Status begin(Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    const absl::Status status = start(&request);
    if (!status.ok()) return break_off(with_context(status, name_));
    requests_.push_back(request);
    return absl::OkStatus();
  }
  absl::Status finish();
  // One call, from begin() to finish(); `start` returns MPI's code.
  template <class Start>
  absl::Status run(std::vector<at::Tensor> tensors, Start start) {
    keep(std::move(tensors));
    requests_.clear();
    GRADWIRE_RETURN_IF_ERROR(begin(
        [&](MPI_Request* request) { return member_.runtime().call(name_, [&] { return start(request); }); }));
    return finish();
  }
  // Breaks the group. Returns `reason`.
  absl::Status break_off(const absl::Status& reason);

  // After finish(): of each call, in the order of begin().
  const std::vector<MPI_Status>& statuses() const { return statuses_; }

 private:
  absl::Status overdue();

  MpiMember& member_;
  const MpiProgress& progress_;
  const char* const name_;
  const absl::Time deadline_;
  std::vector<at::Tensor> tensors_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace gradwire::collectives
