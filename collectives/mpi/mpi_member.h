#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/mpi/mpi_runtime.h"
#include "gradwire/collectives/mpi/mpi_witness.h"

namespace gradwire::collectives {

// The state of one member of a group that its collectives and its messages share: its rank and communicators,
// and whether the group is broken. Thread-safe.
class MpiMember {
 public:
  // Takes ownership of the communicators.
  MpiMember(MpiRuntime& runtime, MPI_Comm collectives, MPI_Comm messages, int rank, int size, int64_t block,
            MpiWitness witness);
  // Frees the communicators if leave() returned true. If the group is broken, it does not: messages may still
  // arrive on them.
  ~MpiMember();

  MpiRuntime& runtime() { return runtime_; }
  // Collectives and messages have different communicators, so that MPI does not confuse the messages of the
  // two.
  MPI_Comm collectives() const { return collectives_; }
  MPI_Comm messages() const { return messages_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The maximum number of bytes of one call of MPI; larger tensors are sent in pieces.
  int64_t block() const { return block_; }
  MpiWitness& witness() { return witness_; }

  bool broken() const { return is_broken_.load(std::memory_order_acquire); }
  // The error of new operations: Aborted with the first reason if the group is broken, else OK.
  absl::Status refusal();
  // Marks the group as broken; if it is broken already, its first reason stays. Returns `reason`.
  absl::Status break_with(const absl::Status& reason);

  // Marks the group as left; later operations fail. Returns true if the group was not broken.
  bool leave();

  // Keeps requests that MPI cannot cancel, and their tensors, until the process ends: MPI may still write to
  // the tensors.
  void abandon(std::vector<MPI_Request> requests, std::vector<at::Tensor> tensors);

 private:
  MpiRuntime& runtime_;
  MPI_Comm collectives_;
  MPI_Comm messages_;
  const int rank_;
  const int size_;
  const int64_t block_;
  MpiWitness witness_;

  std::atomic<bool> is_broken_{false};
  std::atomic<bool> frees_{false};
  Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

// The wait between two calls of MPI_Test: first none, then yields, and after a while short sleeps.
class MpiPause {
 public:
  MpiPause() : began_(absl::InfinitePast()) {}
  // Waits. Returns true in those calls in which it has read the clock; then the caller has time for work that
  // takes longer.
  bool pause();
  // Starts again without waits.
  void reset() { *this = MpiPause(); }
  // The time since the first reading of the clock.
  absl::Duration waited() const { return waited_; }
  // The last reading of the clock.
  absl::Time now() const { return now_; }

 private:
  int polls_ = 0;
  absl::Time began_;
  absl::Time now_;
  absl::Duration waited_ = absl::ZeroDuration();
};

}  // namespace gradwire::collectives
