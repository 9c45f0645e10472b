#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/message.h"

namespace gradwire::metrics {
class Registry;
}

namespace gradwire::rpc {

class AgentImpl;
class CallRecorder;
struct CallerLimit;
struct RpcBackendOptions;

// The functions of an Agent that its references and the layers above use. Thread-safe.
class AgentServices final : public ReferenceHost {
 public:
  // `agent` owns this object.
  AgentServices(std::weak_ptr<Agent> agent, RpcBackendOptions options);
  ~AgentServices();

  const Worker& self() const final;                           // This worker. Set before start() returns.
  Id next_id() final;                                         // A fresh id: unique over all workers.
  const std::shared_ptr<ThreadPool>& executor() const final;  // Runs handlers and continuations.
  const std::shared_ptr<FenceWatch>& fences() const final;
  const std::shared_ptr<StreamOrder>& stream_order() const final;  // nullptr without devices.
  const CallerLimits& caller_limits() const;
  // Counts and returns the error of a caller that has reached this limit.
  absl::Status refuse_over_limit(const Worker& from, const CallerLimit& limit);
  TimerQueue& timers() const final;  // Callbacks must be short and must not run user code.

  // Error: NotFound, which lists the workers of the group.
  absl::StatusOr<Worker> find_worker(const Destination& destination) const;
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const final;  // Error: NotFound.
  // OK while the worker is not lost; then Unavailable or Aborted with the reason.
  absl::Status worker_status(const Worker& worker) const final;
  // Call when another worker says that this incarnation is dead.
  void on_accused(uint64_t incarnation) final;
  std::weak_ptr<Agent> weak_agent() final { return agent_; }
  // The metrics of the agent. An extension counts there what happens (base/metrics/registry.h). nullptr
  // without RpcBackendOptions::metrics.
  const std::shared_ptr<metrics::Registry>& metrics() const;

  // Sends a message to the counterpart of an extension on another worker. `tensors` may be nullptr. They are
  // captured unless this call holds them alone. Errors: Unavailable, DeadlineExceeded, Cancelled,
  // FailedPrecondition after shutdown, or the error of the reply.
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors, const ServiceOptions& options) final;
  // The deadline, on Clock::system(), of a call that starts now and may take `timeout`. An infinite timeout
  // means no limit; nullopt means the agent's rpc_timeout. The result is never later than the deadline of the
  // call that the calling thread serves.
  absl::Time call_deadline(const std::optional<absl::Duration>& timeout) const;
  // Allocates memory, aligned to 64 bytes, for a message to `to`. The transport may send the message from
  // there without copying it, if the buffer is given away. Connects if necessary. Errors: as for a call, and
  // ResourceExhausted.
  absl::StatusOr<transport::Buffer> allocate_for(const Destination& to, std::size_t size);

  // The calls that this worker makes and serves at this moment, in no order. The framework's own messages are
  // included, in `made`, only with `services`.
  OpenCalls open_calls(bool services = false) const;

  // Records the calls and passes of this worker.
  CallRecorder& recorder() const;

  // This agent's extension of type E, or nullptr.
  template <class E>
  E* extension() const {
    for (const auto& candidate : extensions()) {
      if (E* found = dynamic_cast<E*>(candidate.get())) return found;
    }
    return nullptr;
  }

  // For the agent itself.
  AgentImpl& impl() const { return *impl_; }

 private:
  const std::vector<std::unique_ptr<AgentExtension>>& extensions() const;

  const std::weak_ptr<Agent> agent_;
  const std::unique_ptr<AgentImpl> impl_;
};

}  // namespace gradwire::rpc
