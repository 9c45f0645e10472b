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

// What collectives and point to point of one member of a group have in common: where it is, and whether it is
// broken. Thread-safe.
class MpiMember {
 public:
  // Takes the communicators over.
  MpiMember(MpiRuntime& runtime, MPI_Comm collectives, MPI_Comm messages, int rank, int size, int64_t block,
            MpiWitness witness);
  // Gives the communicators back if the group was left in order: to a broken one messages may still be on
  // their way.
  ~MpiMember();

  MpiRuntime& runtime() { return runtime_; }
  // Two, so that the one's messages are not taken for the other's.
  MPI_Comm collectives() const { return collectives_; }
  MPI_Comm messages() const { return messages_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The most bytes of one call; what is larger goes in pieces.
  int64_t block() const { return block_; }
  MpiWitness& witness() { return witness_; }

  bool broken() const { return is_broken_.load(std::memory_order_acquire); }
  // Aborted with the first reason; OK while it is whole.
  absl::Status refusal();
  // The first reason counts. Returns `reason`.
  absl::Status break_with(const absl::Status& reason);

  // This rank leaves. Whether that is in order: the group was whole.
  bool leave();

  // Of requests that cannot be taken back: MPI may write to the tensors as long as the process lives.
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

// How to spend the time until MPI_Test is called again: at once, then giving way, after a while sleeping a
// little.
class MpiPause {
 public:
  MpiPause() : began_(absl::InfinitePast()) {}
  // Looks at the clock now and then; that is when it returns true, and there is time for what takes longer.
  bool pause();
  void reset() { *this = MpiPause(); }
  // Since the first look at the clock.
  absl::Duration waited() const { return waited_; }
  absl::Time now() const { return now_; }

 private:
  int polls_ = 0;
  absl::Time began_;
  absl::Time now_;
  absl::Duration waited_ = absl::ZeroDuration();
};

}  // namespace gradwire::collectives
