#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/mpi/mpi_member.h"

namespace gradwire::collectives {

// Point to point of one member. What does not end at once is looked after by a thread that the first such
// message starts, and that sleeps when nothing is under way. Thread-safe.
class MpiMessages {
 public:
  explicit MpiMessages(std::shared_ptr<MpiMember> member) : member_(std::move(member)) {}
  // Messages under way fail with Aborted.
  ~MpiMessages();

  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline);
  // `src`: -1 for any.
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline);

 private:
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    at::Tensor tensor;
    absl::Time deadline;
    int peer = -1;
    int tag = 0;
    // One of them.
    std::optional<Promise<void>> sent;
    std::optional<Promise<int>> received;
    // A receive whose sender was gone at the last look.
    bool orphaned = false;
  };

  absl::Status check_tag(int tag);
  absl::Status begin(Pending pending);
  // Whether it has ended, and then how: the rank that it came from.
  std::optional<absl::StatusOr<int>> test(Pending& pending);
  static void complete(Pending& pending, absl::StatusOr<int> result);
  void enqueue(Pending pending);
  void run();
  // Checks one pending message that has not ended; returns whether it has failed.
  bool failed(Pending& pending, absl::Time now, bool look);
  void give_up(Pending& pending, const absl::Status& reason);

  const std::shared_ptr<MpiMember> member_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Pending> arrived_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives
