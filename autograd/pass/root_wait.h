#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/agent/extension.h"

namespace gradwire::autograd {

using PassReply = std::function<void(absl::StatusOr<rpc::ServiceReply>)>;

// A RUN that has come.
struct ArrivedRun {
  rpc::Worker from;
  proto::Run run;
  // One for each set bit of run.defined().
  std::vector<at::Tensor> defined;
  PassReply reply;
};

// The wait of the thread that called backward(), and the RUNs that it is handed meanwhile. Thread-safe.
class RootWait {
 public:
  // `executor`: what the thread serves while it waits; may be nullptr.
  explicit RootWait(const std::shared_ptr<Executor>& executor)
      : wave_over_(executor), completion_(executor) {}

  Future<void> wave_over() const { return wave_over_.future(); }
  Future<void> completion() const { return completion_.future(); }

  // The gradients of the roots may be delivered.
  void begin_run() const { wave_over_.set_value(); }
  // The pass has ended.
  void end(const absl::Status& status);

  // A thread takes, or will take, what is handed over.
  void attend();
  // Moves from `arrived`. False when no thread takes it.
  bool hand_over(ArrivedRun& arrived);
  struct News {
    std::vector<ArrivedRun> arrived;
    // No more RUNs are handed over then.
    bool ended = false;
    // Completes when there is more.
    Future<void> more;
  };
  News take();

 private:
  void wake();

  const Promise<void> wave_over_;
  const Promise<void> completion_;

  Mutex mutex_;
  bool attended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<ArrivedRun> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<Promise<void>> more_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
