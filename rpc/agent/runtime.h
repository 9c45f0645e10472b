#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/device/agent_devices.h"
#include "gradwire/rpc/device/fence_watch.h"
#include "gradwire/rpc/device/stream_order.h"
#include "gradwire/rpc/options.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::transport {
class EventLoop;
}

namespace gradwire::rpc {

class Agent;

// The state that the parts of one agent share: its identity, its threads and its extensions. It is filled
// while the agent starts, before the first message can arrive. After that it is constant, except for members
// that synchronise themselves. The agent owns it, and it outlives the parts.
struct AgentRuntime {
  // Returns FailedPrecondition after shutdown has begun, when calls are refused.
  absl::Status accepts_calls() const {
    if (!closed.load(std::memory_order_acquire)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker \"", self.name, "\" has been shut down"));
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

  // Expires when the agent is being destroyed. A reference to the agent keeps all of its parts alive.
  std::weak_ptr<Agent> agent;
  RpcBackendOptions options;
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

  std::atomic<uint64_t> ids{1};
  std::atomic<bool> closed{false};
};

}  // namespace gradwire::rpc
