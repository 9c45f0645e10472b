#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

// Sends a message of a layer to its counterpart on another worker.
namespace gradwire::rpc {
namespace {

// One service call with its repetitions.
// With ServiceOptions::repeat the message is sent until it is answered, its deadline comes, or its receiver
// is lost. Such a message may arrive twice. What is handed over, or shared with another process, can be taken
// once only. So only the first attempt sends tensors on devices in these ways. They are kept until the
// answer, and a second attempt sends their bytes. What the object waits for keeps it alive: during an attempt
// the pending call, between two attempts the timer, and then the task on the executor.
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
        parent_(current_parent()),
        promise_(caller.runtime().executor) {}

  // 1. Compose the request. Its buffers are owned, so that they can be sent again.
  Future<ServiceReply> start(uint32_t service, std::string body, std::unique_ptr<TensorSet> tensors) {
    proto::Request& request = *envelope_->mutable_request();
    request.mutable_service()->set_number(service);
    request.mutable_service()->set_body(std::move(body));
    Future<ServiceReply> future = promise_.future();
    if (tensors != nullptr) {
      if (absl::Status status = encode_first(*tensors); !status.ok()) {
        promise_.set_error(status);
        return future;
      }
    }
    // The promise is a member, so its callback must hold this object weakly. The agent is locked first,
    // because caller_ is valid only while it exists.
    promise_.on_cancel([weak = weak_from_this()] {
      const std::shared_ptr<ServiceAttempt> self = weak.lock();
      const std::shared_ptr<Agent> alive = self == nullptr ? nullptr : self->agent_.lock();
      if (alive != nullptr)
        self->caller_.cancel(self->call_id_, absl::CancelledError("cancelled by the caller"));
    });
    send_when_copied();
    return future;
  }

 private:
  static constexpr absl::Duration kRepeatAfter = absl::Milliseconds(20);

  absl::Status encode_first(const TensorSet& tensors) try {
    if (options_.repeat && caller_.runtime().devices.any()) kept_ = tensor_backend()->keep(tensors);
    GRADWIRE_RETURN_IF_ERROR(encode(tensors, /*as_bytes=*/false));
    if (encoded_.handed_over == nullptr) {
      kept_ = nullptr;
    } else if (kept_ != nullptr) {
      kept_fence_ = tensor_backend()->record_fence(*kept_);
    }
    return absl::OkStatus();
  } catch (...) {
    return caught("the tensors of a message");
  }

  absl::Status encode(const TensorSet& tensors, bool as_bytes) {
    DeviceRoute route = caller_.runtime().devices.route_to(to_, nullptr);
    route.destinations = options_.destinations;
    route.as_bytes = as_bytes;
    envelope_->mutable_request()->clear_arguments();
    encoded_ = EncodedTensors();
    encoded_.executor = caller_.runtime().executor;
    return tensor_backend()->encode(tensors, TensorSharing::kCapture, &route,
                                    *envelope_->mutable_request()->mutable_arguments(), encoded_);
  }

  void send_when_copied() {
    StreamFencePtr copies = std::exchange(encoded_.copies, nullptr);
    // The message is sent as a whole.
    encoded_.progress.clear();
    if (copies == nullptr) {
      send();
      return;
    }
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
    call->parent = parent_;
    call->started = Clock::system().now();
    call->sent_at = call->started;
    call->deadline = options_.deadline;
    call->timeout = options_.deadline - call->started;
    call->answered = [self = shared_from_this()](absl::StatusOr<Answer> answer) {
      self->answered(std::move(answer));
    };
    // Send a copy: the connection may break, and the next attempt may begin with another call id, before this
    // call of send() returns.
    EnvelopeBox copy;
    *copy = *envelope_;
    const uint64_t id = caller_.next_id();
    // Stored before the send, so that a cancellation finds the call. A cancellation that still reads the id
    // of the attempt before has no effect: this attempt then runs to its end, and answered() begins no other.
    call_id_ = id;
    EncodedTensors tensors = encoded_;
    encoded_.handed_over = nullptr;
    caller_.send(id, *copy, std::move(tensors), /*borrow=*/false, std::move(call));
  }

  // Sends it again: with the bytes of the tensors that the first attempt has handed over.
  void repeat() {
    const std::shared_ptr<Agent> alive = agent_.lock();
    if (kept_ == nullptr || alive == nullptr || promise_.future().done()) {
      send();
      return;
    }
    const std::unique_ptr<StreamScope> streams = tensor_backend()->enter_pool_streams();
    absl::Status status = kept_fence_ == nullptr ? absl::OkStatus() : kept_fence_->wait();
    if (status.ok()) status = encode(*kept_, /*as_bytes=*/true);
    kept_ = nullptr;
    kept_fence_ = nullptr;
    if (status.ok()) {
      send_when_copied();
    } else {
      promise_.set_error(std::move(status));
    }
  }

  // 3. Decode the answer, or go back to step 2 when the connection broke.
  void answered(absl::StatusOr<Answer> answer) {
    const std::shared_ptr<Agent> alive = agent_.lock();
    const absl::Time next = Clock::system().now() + kRepeatAfter;
    // If the worker cannot be reached, the attempt fails at once. The pause and the deadline bound the
    // attempts.
    if (alive != nullptr && options_.repeat &&
        (absl::IsUnavailable(answer.status()) || is_local_shortage(answer.status())) &&
        !promise_.future().done() && next < options_.deadline && caller_.may_reach(to_).ok()) {
      // The attempt runs on the executor, because connecting may block, and others need the timers' thread.
      caller_.runtime().timers->schedule(next,
                                         [self = shared_from_this(), executor = caller_.runtime().executor] {
                                           // After shutdown the executor refuses the task. send() then fails
                                           // and completes the promise, on this thread.
                                           executor->post_clean_or_run([self] { self->repeat(); });
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
  const CallParent parent_;
  EnvelopeBox envelope_;
  EncodedTensors encoded_;
  // The tensors of an attempt that handed some over, and the point after which they can be encoded again.
  std::unique_ptr<TensorSet> kept_;
  StreamFencePtr kept_fence_;
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
