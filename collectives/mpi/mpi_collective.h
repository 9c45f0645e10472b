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

// The progress of a member in its group's collectives, which are numbered from 1.
struct MpiProgress {
  // The number of the last collective that has begun. Used only by the thread that calls collectives.
  uint64_t begun = 0;
  // The number of the last collective that has ended. Also read by the thread that leaves the group.
  std::atomic<uint64_t> finished{0};
};

// One collective of one member. It uses MPI's nonblocking calls and polls them until they have ended or the
// deadline has passed.
//
//   1. begin() starts one call of MPI; it may be called several times.
//   2. finish() polls until all calls have ended. If that is slow, it writes to the store that this rank
//      waits in this collective, and reads there which ranks have left.
//   3. An error breaks the group, because the other ranks may already be in the collective. MPI keeps the
//      requests and tensors of calls that have not ended.
//
// Used only by the thread that calls collectives.
class MpiCollective {
 public:
  // `progress.begun` is this collective's number.
  MpiCollective(MpiMember& member, const MpiProgress& progress, const char* name, absl::Time deadline)
      : member_(member), progress_(progress), name_(name), deadline_(deadline) {}

  // Keeps these tensors alive while MPI uses them. Releases the tensors of the call before.
  void keep(std::vector<at::Tensor> tensors) { tensors_ = std::move(tensors); }
  // Begins one call of MPI. `start` gets the request to fill in, and returns a Status.
  template <class Start>
  absl::Status begin(Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    const absl::Status status = start(&request);
    if (!status.ok()) return break_off(with_context(status, name_));
    requests_.push_back(request);
    return absl::OkStatus();
  }
  // Waits until all calls have ended. Errors break the group: DeadlineExceeded names the ranks that did not
  // arrive; Unavailable or Aborted names a rank that has left; the group's reason if it is broken; MPI's
  // errors.
  absl::Status finish();
  // Runs one call: begin() and finish(). `start` gets the request to fill in, and returns MPI's code.
  template <class Start>
  absl::Status run(std::vector<at::Tensor> tensors, Start start) {
    keep(std::move(tensors));
    requests_.clear();
    GRADWIRE_RETURN_IF_ERROR(begin(
        [&](MPI_Request* request) { return member_.runtime().call(name_, [&] { return start(request); }); }));
    return finish();
  }
  // Breaks the group with `reason`, and leaves the requests and tensors to MPI. Returns `reason`.
  absl::Status break_off(const absl::Status& reason);

  // After finish(): the status of each call, in the order of begin().
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
