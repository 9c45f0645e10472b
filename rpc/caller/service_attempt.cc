#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

// Sends a message of a layer to its counterpart on another worker.
namespace gradwire::rpc {
namespace {

// One service call with its repetitions.
// With ServiceOptions::repeat the message is sent until it is answered, its deadline comes, or its receiver
// is lost. Such a message may arrive twice.
// What the object waits for keeps it alive: during an attempt the pending call, between two attempts the
// timer, and then the task on the executor.
class ServiceAttempt : public std::enable_shared_from_this<ServiceAttempt> {
 public:
  ServiceAttempt(Caller& caller, Peers& peers, const Worker& to, std::string callee,
                 const ServiceOptions& options)
      : agent_(caller.runtime().agent),
        caller_(caller),
        peers_(peers),
        to_(to),
        callee_(std::move(callee)),
        options_(options),
        promise_(caller.runtime().executor) {}

  // 1. Compose the request. Its buffers are owned, so that it can be sent again.
  Future<ServiceReply> start(uint32_t service, std::string body, std::unique_ptr<TensorSet> tensors) {
    proto::Request& request = *envelope_.mutable_request();
    request.mutable_service()->set_number(service);
    request.mutable_service()->set_body(std::move(body));
    Future<ServiceReply> future = promise_.future();
    EncodedTensors encoded;
    if (tensors != nullptr) {
      DeviceRoute route = caller_.runtime().devices.route_to(to_, nullptr);
      route.destinations = options_.destinations;
      route.as_bytes |= options_.repeat;
      absl::Status status = tensor_backend()->encode(*tensors, TensorSharing::kCapture, &route,
                                                     *request.mutable_arguments(), encoded);
      if (!status.ok()) {
        promise_.set_error(status);
        return future;
      }
    }
    StreamFencePtr copies = std::move(encoded.copies);
    encoded_ = std::move(encoded);
    // The promise is a member, so its callback must hold this object weakly. The agent is locked first,
    // because caller_ is valid only while it exists.
    promise_.on_cancel([weak = weak_from_this()] {
      const std::shared_ptr<ServiceAttempt> self = weak.lock();
      const std::shared_ptr<Agent> alive = self == nullptr ? nullptr : self->agent_.lock();
      if (alive != nullptr)
        self->caller_.cancel(self->call_id_, absl::CancelledError("cancelled by the caller"));
    });
    if (copies == nullptr) {
      send();
    } else {
      // It counts as a call that has not ended, so that a graceful shutdown waits for it.
      caller_.pending().refused();
      caller_.runtime().fences->watch(std::move(copies),
                                      [self = shared_from_this()](const absl::Status& copied) {
                                        if (copied.ok()) {
                                          self->send();
                                        } else {
                                          self->promise_.set_error(copied);
                                        }
                                        if (const std::shared_ptr<Agent> alive = self->agent_.lock())
                                          self->caller_.pending().finished();
                                      });
    }
    return future;
  }

 private:
  static constexpr absl::Duration kRepeatAfter = absl::Milliseconds(20);

  // 2. Send it.
  void send() {
    if (promise_.future().done()) return;  // Cancelled between two attempts.
    const std::shared_ptr<Agent> alive = agent_.lock();
    if (alive == nullptr) {
      promise_.set_error(absl::FailedPreconditionError("the agent was destroyed"));
      return;
    }
    absl::StatusOr<std::shared_ptr<Peer>> peer = peers_.find(to_);
    if (!peer.ok()) {
      promise_.set_error(with_worker(peer.status(), to_.name));
      return;
    }
    auto call = std::make_unique<PendingCall>();
    call->peer = *std::move(peer);
    call->incarnation = to_.incarnation;
    call->callee = callee_;
    call->started = Clock::system().now();
    call->sent_at = call->started;
    call->deadline = options_.deadline;
    call->timeout = options_.deadline - call->started;
    call->answered = [self = shared_from_this()](absl::StatusOr<Answer> answer) {
      self->answered(std::move(answer));
    };
    // Send a copy: the connection may break, and the next attempt may begin with another call id, before this
    // call of send() returns.
    proto::Envelope copy = envelope_;
    const uint64_t id = caller_.next_id();
    // Stored before the send, so that a cancellation finds the call. A cancellation that still reads the id
    // of the attempt before has no effect: this attempt then runs to its end, and answered() begins no other.
    call_id_ = id;
    caller_.send(id, copy, EncodedTensors(encoded_), /*borrow=*/false, std::move(call));
  }

  // 3. Decode the answer, or go back to step 2 when the connection broke.
  void answered(absl::StatusOr<Answer> answer) {
    const std::shared_ptr<Agent> alive = agent_.lock();
    const absl::Time next = Clock::system().now() + kRepeatAfter;
    // If the worker cannot be reached, the attempt fails at once. The pause and the deadline bound the
    // attempts.
    if (alive != nullptr && options_.repeat && absl::IsUnavailable(answer.status()) &&
        !promise_.future().done() && next < options_.deadline && peers_.status(to_).ok() &&
        caller_.runtime().accepts_calls().ok()) {
      // The attempt runs on the executor, because connecting may block, and others need the timers' thread.
      caller_.runtime().timers->schedule(next,
                                         [self = shared_from_this(), executor = caller_.runtime().executor] {
                                           // After shutdown the executor refuses the task. send() then fails
                                           // and completes the promise, on this thread.
                                           Executor::Task task = [self] { self->send(); };
                                           if (!executor->post_clean(task)) task();
                                         });
      return;
    }
    if (!answer.ok()) {
      promise_.set_error(answer.status());
      return;
    }
    ServiceReply reply;
    StreamFencePtr fence;
    reply.body = answer->response().body();
    const proto::Payload& payload = answer->response().result();
    if (payload.tensors_size() > 0 && tensor_backend() != nullptr) {
      AgentDevices::Arrived arrived;
      absl::Status decoded =
          caller_.runtime().devices.decode(to_, payload, std::move(answer->buffers), arrived);
      if (!decoded.ok()) {
        promise_.set_error(std::move(decoded));
        return;
      }
      reply.tensors = std::move(arrived.tensors);
      fence = std::move(arrived.fence);
    }
    promise_.set_result(std::move(reply), std::move(fence));
  }

  const std::weak_ptr<Agent> agent_;
  // Valid while the agent exists.
  Caller& caller_;
  Peers& peers_;
  const Worker to_;
  const std::string callee_;
  const ServiceOptions options_;
  proto::Envelope envelope_;
  EncodedTensors encoded_;
  const Promise<ServiceReply> promise_;
  std::atomic<uint64_t> call_id_{0};
};

}  // namespace

Future<ServiceReply> Caller::call_service(const Worker& to, uint32_t service, std::string body,
                                          std::unique_ptr<TensorSet> tensors, const ServiceOptions& options) {
  return std::make_shared<ServiceAttempt>(*this, peers_, to, absl::StrCat("service ", service), options)
      ->start(service, std::move(body), std::move(tensors));
}

}  // namespace gradwire::rpc
