#pragma once

#include <ATen/core/Tensor.h>

#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::testing {

// One rank's part of a collective: its call and its tensors.
struct Contribution {
  // Describes the call; it must be equal on all ranks.
  std::string operation;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
};

// The shared state of the ranks of one local group: its collectives and its messages. Thread-safe; every rank
// may be in at most one collective at a time.
class Room {
 public:
  using Work = absl::Status (*)(std::vector<Contribution>& ranks, int root, ReduceOp op);

  explicit Room(int size) : slots_(size), left_(size, false), inboxes_(size) {}
  ~Room();

  // Waits until all ranks have called it; the last one runs `work` for all of them.
  absl::Status meet(int rank, Contribution contribution, Work work, int root, ReduceOp op,
                    absl::Time deadline);

  Future<void> send(int src, int dst, int tag, const at::Tensor& tensor);
  Future<int> receive(int rank, int src, int tag, at::Tensor tensor, absl::Time deadline);

  void abort(const absl::Status& reason);
  void leave(int rank);

 private:
  struct Message {
    int src;
    int tag;
    at::Tensor tensor;
  };
  struct Receive {
    int src;
    int tag;
    at::Tensor tensor;
    absl::Time deadline;
    Promise<int> done;
  };
  struct Inbox {
    std::list<Message> messages;
    std::list<Receive> receives;
  };
  // Promises to complete after the lock has been released.
  using Completions = std::vector<std::pair<Promise<int>, absl::StatusOr<int>>>;

  absl::Status refusal_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void break_locked(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status timeout_error_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status lost_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void fail_receives_locked(const absl::Status& reason, Completions& completions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire();

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<Contribution>> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> left_ ABSL_GUARDED_BY(mutex_);
  std::size_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  // The result of the last collective.
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<Inbox> inboxes_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // Fails receives at their deadlines. The first receive that waits starts it.
  std::thread expirer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::testing
