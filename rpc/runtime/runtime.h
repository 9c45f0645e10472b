#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/device/agent_devices.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/limits/limit_refusals.h"
#include "gradwire/rpc/order/fence_watch.h"
#include "gradwire/rpc/order/stream_order.h"
#include "gradwire/rpc/policy/call_policy.h"

namespace gradwire::metrics {
class Registry;
}
namespace gradwire::transport {
class EventLoop;
}

namespace gradwire::rpc {

class Agent;
class CallMetrics;

// The timeout of the calls of one agent that have none of their own. May be changed at any time. Thread-safe.
class RpcTimeout {
 public:
  absl::Duration get() const {
    const int64_t nanoseconds = nanoseconds_.load(std::memory_order_relaxed);
    return nanoseconds == kInfinite ? absl::InfiniteDuration() : absl::Nanoseconds(nanoseconds);
  }
  // A timeout of more than 292 years is infinite. Returns InvalidArgument if it is not positive.
  absl::Status set(absl::Duration timeout) {
    if (timeout <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat("rpc_timeout must be positive, got ",
                                                     absl::FormatDuration(timeout),
                                                     "; absl::InfiniteDuration() means no limit"));
    }
    nanoseconds_.store(std::max<int64_t>(1, absl::ToInt64Nanoseconds(timeout)), std::memory_order_relaxed);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> nanoseconds_{kInfinite};
};

// The state that the parts of one agent share: its identity, its threads and its extensions. It is filled
// while the agent starts, before the first message can arrive. After that it is constant, except for members
// that synchronise themselves. The agent owns it, and it outlives the parts.
struct AgentRuntime {
  // FailedPrecondition in a forked child of the agent's process.
  absl::Status check_process() const {
    return mark.check([this] { return absl::StrCat("worker \"", self.name, "\""); });
  }
  // Returns FailedPrecondition in a forked child, and after shutdown has begun, when calls are refused.
  absl::Status accepts_calls() const {
    GRADWIRE_RETURN_IF_ERROR(check_process());
    if (!closed.load(std::memory_order_acquire)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker \"", self.name, "\" has been shut down"));
  }
  // The error that the caller `from` gets for `error`, with which its call ends here. The error that this
  // worker's own calls get after its shutdown would say there that the caller has shut down. For another
  // worker this one cannot be reached any more. A handler passes on such an error of its nested calls, for
  // example.
  absl::Status for_caller(const Worker& from, absl::Status error) const {
    const absl::Status own = accepts_calls();
    if (own.ok() || from.incarnation == self.incarnation || error.code() != own.code() ||
        !absl::StrContains(error.message(), own.message())) {
      return error;
    }
    return with_worker(absl::UnavailableError(error.message()), worker_of(error));
  }
  // Returns a new id, unique over all workers.
  Id next_id() { return {self.incarnation, ids.fetch_add(1)}; }
  // The extension that serves calls of this service, or nullptr.
  AgentExtension* extension_for(uint32_t service) const {
    for (const auto& extension : extensions) {
      if (extension->serves(service)) return extension.get();
    }
    return nullptr;
  }

  const ProcessMark mark;
  // Expires when the agent is being destroyed. A reference to the agent keeps all of its parts alive.
  std::weak_ptr<Agent> agent;
  // Constant; `rpc_timeout` is the one at the start.
  RpcBackendOptions options;
  RpcTimeout rpc_timeout;
  Worker self;

  // Polled by the executor's threads, and by threads that wait.
  std::shared_ptr<transport::EventLoop> loop;
  std::shared_ptr<ThreadPool> executor;
  std::unique_ptr<TimerQueue> timers;
  AgentDevices devices;
  // The streams of handlers, and the order of their work and that of other threads; nullptr without devices.
  std::shared_ptr<HandlerStreams> handler_streams;
  std::shared_ptr<StreamOrder> order;
  // Waits for copies from devices, before the messages with their bytes are sent.
  std::shared_ptr<FenceWatch> fences;
  std::vector<std::unique_ptr<AgentExtension>> extensions;
  // nullptr if no extension has a graph hook.
  GraphHook* graph_hook = nullptr;
  // Records the calls and passes. Off until the agent starts.
  std::unique_ptr<CallRecorder> recorder = std::make_unique<CallRecorder>(0);
  // Called after calls have timed out, with the error and the timeout of the one that had the most time. It
  // may have flight records dumped.
  std::function<void(const absl::Status& error, absl::Duration timeout)> on_timeout;
  // Decides what other workers may call; nullptr without a policy file, when they may call what is
  // registered.
  std::unique_ptr<CallPolicy> policy;
  // The metrics of the agent, and those of its calls; nullptr without RpcBackendOptions::metrics.
  std::shared_ptr<metrics::Registry> metrics;
  std::shared_ptr<CallMetrics> call_metrics;
  // Refuses what other workers want above options.caller_limits.
  LimitRefusals refusals;

  std::atomic<uint64_t> ids{1};
  std::atomic<bool> closed{false};
};

}  // namespace gradwire::rpc
