#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/device.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/agent/extension.h"

namespace gradwire::autograd {

using PassReply = std::function<void(absl::StatusOr<rpc::ServiceReply>)>;

// A RUN that has arrived.
struct ArrivedRun {
  rpc::Worker from;
  proto::Run run;
  // One gradient for each set bit of run.defined().
  std::vector<at::Tensor> defined;
  // Their devices at the sender; empty if all were on the CPU.
  std::vector<rpc::Device> sender_devices;
  // After it the gradients may be used; nullptr if they are on the CPU.
  StreamFencePtr fence;
  PassReply reply;
};

// Wakes the thread that called backward(), and hands it the RUNs that arrive while it waits. Thread-safe.
class RootWait {
 public:
  // `executor`: the executor whose tasks the thread runs while it waits; may be nullptr.
  explicit RootWait(const std::shared_ptr<Executor>& executor)
      : wave_over_(executor), completion_(executor) {}

  Future<void> wave_over() const { return wave_over_.future(); }
  Future<void> completion() const { return completion_.future(); }

  // Reports that the gradients of the roots may be delivered.
  void begin_run() const { wave_over_.set_value(); }
  // Reports that the pass has ended.
  void end(const absl::Status& status);

  // Announces a thread that will call take() until the pass has ended. From now on RUNs can be handed over.
  void attend();
  // Hands a RUN to the thread: moves from `arrived`. Returns false if no thread takes RUNs.
  bool hand_over(ArrivedRun& arrived);
  struct Batch {
    std::vector<ArrivedRun> arrived;
    // The pass has ended, and no more RUNs are handed over.
    bool ended = false;
    // Completes when another RUN is handed over or the pass ends. Of use only if `arrived` is empty and the
    // pass has not ended.
    Future<void> more;
  };
  // Returns the RUNs that were handed over since the last call. Does not wait.
  Batch take();

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
