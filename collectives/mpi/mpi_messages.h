#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/mpi/mpi_member.h"

namespace gradwire::collectives {

// The point-to-point messages of one member. A thread polls the messages that do not end at once. The first
// such message starts the thread; it sleeps when no message is under way. Thread-safe.
class MpiMessages {
 public:
  explicit MpiMessages(std::shared_ptr<MpiMember> member) : member_(std::move(member)) {}
  // Messages under way fail with Aborted.
  ~MpiMessages();

  // As GroupBackend's methods. A message that is late, or whose peer has left, breaks the group.
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline);
  // `src` -1: from any rank.
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline);

 private:
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    at::Tensor tensor;
    absl::Time deadline;
    int peer = -1;
    int tag = 0;
    // Exactly one of the two is set.
    std::optional<Promise<void>> sent;
    std::optional<Promise<int>> received;
    // Whether the peer had left at the last check of the store.
    bool orphaned = false;
  };

  absl::Status check_tag(int tag);
  absl::Status begin(Pending pending);
  // The result: the sender's rank for a receive, -1 for a send. nullopt if the message has not ended.
  std::optional<absl::StatusOr<int>> test(Pending& pending);
  static void complete(Pending& pending, absl::StatusOr<int> result);
  void enqueue(Pending pending);
  // Starts the thread unless it runs or the group closes.
  absl::Status ensure_thread();
  void run();
  // Checks one pending message that has not ended; returns whether it has failed. `check_store`: also checks
  // whether its peer has left.
  bool failed(Pending& pending, absl::Time now, bool check_store);
  // Cancels a message, if MPI can, and completes it with `reason`.
  void give_up(Pending& pending, const absl::Status& reason);

  const std::shared_ptr<MpiMember> member_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Pending> arrived_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives
