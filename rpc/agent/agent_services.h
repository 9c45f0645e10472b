#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class AgentImpl;
struct RpcBackendOptions;

// The functions of an Agent that its references and the layers above use. Thread-safe.
class AgentServices final : public ReferenceHost {
 public:
  // `agent` owns it.
  AgentServices(std::weak_ptr<Agent> agent, RpcBackendOptions options);
  ~AgentServices();

  const Worker& self() const final;                           // This worker. Set before start() returns.
  Id next_id() final;                                         // A fresh id: unique over all workers.
  const std::shared_ptr<ThreadPool>& executor() const final;  // Where handlers and continuations run.
  TimerQueue& timers() const final;                           // Its callbacks are short and never the user's.

  // NotFound lists the names there are.
  absl::StatusOr<Worker> find_worker(const Destination& destination) const;
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const final;  // Or NotFound.
  // Unavailable or Aborted, with the reason, once the worker was lost; OK before.
  absl::Status worker_status(const Worker& worker) const final;
  // Another worker says that this incarnation is dead.
  void on_accused(uint64_t incarnation) final;
  std::weak_ptr<Agent> weak_agent() final { return agent_; }

  // Sends a message to the counterpart of an extension. `tensors` (may be nullptr) are captured unless nobody
  // else holds them. Errors: Unavailable, DeadlineExceeded, Cancelled, FailedPrecondition after shutdown, or
  // what the other side replied.
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors, const ServiceOptions& options) final;
  // When a call that may take `timeout` (infinite: no limit; none: the agent's rpc_timeout) and starts now
  // must have ended, on Clock::system(); no later than the call that the calling thread serves.
  absl::Time call_deadline(const std::optional<absl::Duration>& timeout) const;
  // Memory aligned to 64 bytes from which a message to `to` may travel without being copied, when it is given
  // away. Connects if need be. Errors as a call's, and ResourceExhausted.
  absl::StatusOr<transport::Buffer> allocate_for(const Destination& to, std::size_t size);

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
