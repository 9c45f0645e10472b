#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

class Agent;
class FenceWatch;
class StreamOrder;

// The interface of an agent that its references use. Thread-safe.
class ReferenceHost {
 public:
  virtual const Worker& self() const = 0;
  // Returns a new id, unique over all workers.
  virtual Id next_id() = 0;
  virtual const std::shared_ptr<ThreadPool>& executor() const = 0;
  virtual TimerQueue& timers() const = 0;
  virtual const std::shared_ptr<FenceWatch>& fences() const = 0;
  // nullptr if the agent has no devices.
  virtual const std::shared_ptr<StreamOrder>& stream_order() const = 0;

  // Aborted when another worker has taken the name of this incarnation.
  virtual absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const = 0;
  // OK while the worker is a member; Unavailable or Aborted, with the reason, after it was lost.
  virtual absl::Status worker_status(const Worker& worker) const = 0;
  // Sends a message to the same service of another worker. `tensors` (may be nullptr) are copied unless
  // nothing else holds them. Errors: Unavailable, DeadlineExceeded, Cancelled, FailedPrecondition after
  // shutdown, or the error that the other worker replied.
  virtual Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                            std::unique_ptr<TensorSet> tensors,
                                            const ServiceOptions& options) = 0;
  // Another worker declared this incarnation dead.
  virtual void on_accused(uint64_t incarnation) = 0;

  // Expires when the agent is being destroyed. Destructors of values run with this agent as the current one.
  virtual std::weak_ptr<Agent> weak_agent() = 0;

 protected:
  ~ReferenceHost() = default;
};

}  // namespace gradwire::rpc
