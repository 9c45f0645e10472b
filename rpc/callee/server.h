#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
class RRefService;

// The strands of ordered calls, by caller and order key. A strand lives while calls use it. Each thread of a
// caller has its own key, so the table removes the entries of strands that have ended. Thread-safe.
class OrderStrands {
 public:
  explicit OrderStrands(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Returns the strand of this key of the caller with this incarnation. Makes one if none is alive: then none
  // of its calls is queued or running, so a new strand keeps the order as well. Takes constant time on
  // average. The table has at most kMostUnused entries, or twice those that were in use at its last sweep.
  std::shared_ptr<Strand> find(uint64_t incarnation, uint64_t key) {
    MutexLock lock(mutex_);
    std::weak_ptr<Strand>& slot = strands_[{incarnation, key}];
    std::shared_ptr<Strand> strand = slot.lock();
    if (strand != nullptr) return strand;
    strand = std::make_shared<Strand>(executor_);
    slot = strand;
    if (strands_.size() > sweep_above_) sweep_locked();
    return strand;
  }

  // Number of entries, those of ended strands included.
  std::size_t size() const {
    MutexLock lock(mutex_);
    return strands_.size();
  }
  // Number of entries that were examined so far in order to remove those of ended strands.
  uint64_t examined() const {
    MutexLock lock(mutex_);
    return examined_;
  }

  static constexpr std::size_t kMostUnused = 1024;

 private:
  // At least half of the entries that the next sweep examines will be new, so each new entry pays for two.
  void sweep_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    examined_ += strands_.size();
    absl::erase_if(strands_, [](const auto& entry) { return entry.second.expired(); });
    sweep_above_ = std::max(kMostUnused, 2 * strands_.size());
  }

  const std::shared_ptr<Executor> executor_;

  mutable Mutex mutex_;
  HashMap<std::pair<uint64_t, uint64_t>, std::weak_ptr<Strand>> strands_ ABSL_GUARDED_BY(mutex_);
  // The next sweep comes when there are more entries than this.
  std::size_t sweep_above_ ABSL_GUARDED_BY(mutex_) = kMostUnused;
  uint64_t examined_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Serves the requests that arrive at one agent. It finds the callee and its object, queues calls whose order
// is guaranteed, admits each call to its autograd context, runs it on the executor, and sends the answer.
// Thread-safe. Its arguments must outlive it.
class Server {
 public:
  Server(AgentRuntime& runtime, RRefService& rrefs);

  // Handles a request. Called on a thread of the transport; does not block.
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers);

  ServedCalls& calls() { return calls_; }
  const TurnWaits& turn_waits() const { return turn_waits_; }

 private:
  class ServiceAnswer;

  // Asks the policy, which exists.
  absl::Status check_service(AgentExtension* layer, const Worker& from, uint32_t number);
  void serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers);
  // Decodes a service call and passes it to its layer, which may be nullptr.
  void read_service(AgentExtension* layer, const Worker& from, const proto::Envelope& envelope,
                    std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer);
  // The steps of on_request() for a call, and for a message to a service that has entered. Without memory
  // they throw; `made` is then the call, if it has entered.
  void accept(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr&& envelope,
              std::vector<transport::Buffer>&& buffers, std::shared_ptr<ServedCall>& made);
  void serve_service(AgentExtension* layer, const Worker& from, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer);
  // Runs a step of the call. An exception fails the call.
  static void go_on(const std::shared_ptr<ServedCall>& call, absl::FunctionRef<void()> step) noexcept;
  // Queues the call once its autograd context admits it.
  void admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand);
  // Runs the call on the executor, after the calls that it must not overtake.
  void enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand);
  // As enqueue(), for a call that must not overtake earlier ones of its caller, and for a method of a serial
  // object.
  void enqueue_ordered(const std::shared_ptr<ServedCall>& call);
  void enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  // The call waits in `strand`, as its task `number`. If it still waits a little before its deadline, it
  // fails. The error says where it waited (`place`, a literal), and names the call that runs on its serial
  // object.
  void wait_for_turn(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand,
                     uint64_t number, absl::string_view place);
  void refuse(Link& link, uint64_t call_id, const absl::Status& status);

  AgentRuntime& runtime_;
  RRefService& rrefs_;

  // Synchronised by themselves.
  ServedCalls calls_;
  TurnWaits turn_waits_;
  CalleeCost service_cost_;
  CalleeCost fetch_cost_;
  const ServedCall::Services services_;
  OrderStrands order_strands_;
};

}  // namespace gradwire::rpc
