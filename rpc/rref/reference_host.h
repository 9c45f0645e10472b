#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// What the references of an agent use of it. Thread-safe.
class ReferenceHost {
 public:
  virtual const Worker& self() const = 0;
  // A fresh id: unique over all workers.
  virtual Id next_id() = 0;
  virtual const std::shared_ptr<ThreadPool>& executor() const = 0;
  virtual TimerQueue& timers() const = 0;

  // Aborted when another worker has taken its place.
  virtual absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const = 0;
  // Unavailable or Aborted, with the reason, once the worker was lost; OK before.
  virtual absl::Status worker_status(const Worker& worker) const = 0;
  // Sends a message to the counterpart of an extension. `tensors` (may be nullptr) are captured unless nobody
  // else holds them. Errors: Unavailable, DeadlineExceeded, Cancelled, FailedPrecondition after shutdown, or
  // what the other side replied.
  virtual Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                            std::unique_ptr<TensorSet> tensors,
                                            const ServiceOptions& options) = 0;
  // Another worker says that this incarnation is dead.
  virtual void on_accused(uint64_t incarnation) = 0;

  // Expires when the agent is being destroyed. Values and handles run within it.
  virtual std::weak_ptr<Agent> weak_agent() = 0;

 protected:
  ~ReferenceHost() = default;
};

}  // namespace gradwire::rpc
