#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/rpc/agent/current_agent.h"
#include "gradwire/rpc/callee/callee_list.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/parts/send_ahead.h"
#include "gradwire/rpc/rref/service.h"

// The part of the server that answers service calls, which are messages of the framework itself.
namespace gradwire::rpc {

// The answer to one service call. It is sent once, whatever the extension does: with Internal if the
// extension drops the call.
class Server::ServiceAnswer : public std::enable_shared_from_this<ServiceAnswer> {
 public:
  // How the call was entered.
  struct Entry {
    // The size that begin_service() has counted.
    uint64_t bytes = 0;
    bool counted = false;
    // Its record in the agent's CallRecorder.
    uint64_t record = 0;
  };
  ServiceAnswer(Server& server, std::shared_ptr<Agent> agent, const Worker& from, std::shared_ptr<Link> link,
                uint64_t call_id, const Entry& entry)
      : server_(server),
        agent_(std::move(agent)),
        from_(from),
        link_(std::move(link)),
        call_id_(call_id),
        entry_(entry) {}
  // Also the end of a service whose task the executor has refused because of a shutdown.
  ~ServiceAnswer() { send(absl::InternalError("the service dropped its call")); }

  void send(absl::StatusOr<ServiceReply> reply) {
    if (sent_.exchange(true)) return;
    proto::Envelope out;
    proto::Response& response = *out.mutable_response();
    response.set_call_id(call_id_);
    EncodedTensors encoded;
    if (reply.ok()) {
      response.set_body(std::move(reply->body));
      if (reply->tensors != nullptr) {
        DeviceRoute route = server_.runtime_.devices.route_to(from_, nullptr);
        route.is_answer = true;
        route.destinations = std::move(reply->destinations);
        absl::Status status = tensor_backend()->encode(*reply->tensors, TensorSharing::kCapture, &route,
                                                       *response.mutable_result(), encoded);
        if (!status.ok()) reply = status;
      }
    }
    if (!reply.ok()) refuse(reply.status(), response, encoded);
    server_.runtime_.recorder->ended(entry_.record, Clock::system().now(), reply.status().code());
    if (encoded.copies != nullptr) {
      send_when_copied(out, std::move(encoded));
      return;
    }
    // No thread waits for such an answer, so it need not wake the peer.
    if (reply.ok() && reply->deferrable && encoded.buffers.empty() && encoded.handed_over == nullptr) {
      link_->send_deferred(out);
    } else {
      (void)link_->send_encoded(out, std::move(encoded));
    }
    end();
  }

 private:
  // After the send: a graceful shutdown closes the links when no service is running.
  void end() { server_.calls_.end_service(from_, entry_.bytes, entry_.counted); }

  void refuse(const absl::Status& status, proto::Response& response, EncodedTensors& encoded) {
    // The error may have come from the tensors, after the body was set.
    response.clear_body();
    response.clear_result();
    encoded = EncodedTensors();
    status_to_proto(with_worker(status, server_.runtime_.self.name), *response.mutable_status());
  }

  void send_when_copied(proto::Envelope& envelope, EncodedTensors encoded) {
    auto out = std::make_shared<proto::Envelope>();
    out->Swap(&envelope);
    SendAhead::start(
        server_.runtime_.fences, std::move(encoded), [link = link_] { return link; },
        [self = shared_from_this(), out](const absl::Status& copied, EncodedTensors tensors) {
          if (!copied.ok()) self->refuse(copied, *out->mutable_response(), tensors);
          (void)self->link_->send_encoded(*out, std::move(tensors));
          self->end();
        });
  }

  Server& server_;
  // Keeps the server alive.
  const std::shared_ptr<Agent> agent_;
  const Worker from_;
  const std::shared_ptr<Link> link_;
  const uint64_t call_id_;
  const Entry entry_;
  std::atomic<bool> sent_{false};
};

// A worker may always give back what it holds, and ask whether this one is alive. Other messages about
// references say what the sender itself holds, or has lost.
absl::Status Server::check_service(AgentExtension* layer, const Worker& from, uint32_t number) {
  const absl::Time now = Clock::system().now();
  if (number == kForkAdd) return runtime_.policy->check_hold(from, now);
  if (number == kListCallees) return runtime_.policy->check_service(from, "callees", now);
  if (layer == nullptr || layer->gives_back(number)) return absl::OkStatus();
  return runtime_.policy->check_service(from, layer->name(), now);
}

void Server::serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) {
  std::shared_ptr<Agent> agent = runtime_.agent.lock();
  if (agent == nullptr) return;
  const uint32_t number = (*envelope)->request().service().number();
  const uint64_t call_id = (*envelope)->request().call_id();
  AgentExtension* const layer = runtime_.extension_for(number);
  // A message about references, or one that gives something back, is not refused: it ends more than it takes.
  const bool counted = from.incarnation != runtime_.self.incarnation && !RRefService::serves(number) &&
                       (layer == nullptr || !layer->gives_back(number));
  absl::Status refused = calls_.check_reader(from, *link);
  ServiceAnswer::Entry entry{.bytes = counted ? bytes_of(envelope, buffers) : 0, .counted = counted};
  if (refused.ok() || !counted) refused = calls_.begin_service(from, entry.bytes, counted);
  if (!refused.ok()) {
    // No answer is sent during shutdown. The Goodbye that follows ends the call at its sender.
    if (absl::IsResourceExhausted(refused)) refuse(*link, call_id, refused);
    return;
  }
  entry.record = runtime_.recorder->begin(CallEvent::Kind::kServed, from.incarnation, call_id, {},
                                          absl::StrCat("service ", number), Clock::system().now());
  auto answer = std::make_shared<ServiceAnswer>(*this, agent, from, link, call_id, entry);
  if (number == kForkAdd) {
    if (absl::Status room = rrefs_.check_hold(from); !room.ok()) {
      answer->send(std::move(room));
      return;
    }
  }
  if (runtime_.policy != nullptr) {
    if (absl::Status allowed = check_service(layer, from, number); !allowed.ok()) {
      answer->send(std::move(allowed));
      return;
    }
  }
  if (const proto::Service& service = (*envelope)->request().service();
      RRefService::serves(service.number())) {
    // Messages about references are handled on this thread, in the order of arrival: all that have arrived
    // must have been handled when the end of the connection is handled.
    ServiceCall call;
    call.from = from;
    call.service = service.number();
    call.body = service.body();
    call.reply = [answer](absl::StatusOr<ServiceReply> reply) { answer->send(std::move(reply)); };
    rrefs_.serve(call);
    return;
  }
  if (layer != nullptr && layer->serves_on_arrival(number)) {
    read_service(layer, from, **envelope, std::move(buffers), std::move(answer));
    return;
  }
  Executor::Task task = [this, layer, agent = std::move(agent), from, envelope = std::move(envelope),
                         buffers = std::move(buffers), answer = std::move(answer)]() mutable {
    // The task holds the agent, so that the extension lives while it serves the call.
    CurrentAgent::Scope scope(agent);
    read_service(layer, from, **envelope, std::move(buffers), std::move(answer));
  };
  runtime_.executor->post_clean(task, service_cost_.of(0));
}

void Server::read_service(AgentExtension* layer, const Worker& from, const proto::Envelope& envelope,
                          std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer) {
  const proto::Request& request = envelope.request();
  ServiceCall call;
  call.from = from;
  call.service = request.service().number();
  call.body = request.service().body();
  call.deadline = deadline_of(request, Clock::system().now());
  call.reply = [answer = std::move(answer)](absl::StatusOr<ServiceReply> reply) {
    answer->send(std::move(reply));
  };
  // Tensors on devices are made on streams of the pool, which stay current while the layer serves the call.
  std::unique_ptr<StreamScope> streams;
  if (request.arguments().tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      call.reply(absl::InvalidArgumentError(
          absl::StrCat("worker \"", runtime_.self.name,
                       "\" cannot receive tensors: its program was linked without libtorch")));
      return;
    }
    AgentDevices::Arrived arrived;
    absl::Status decoded = runtime_.devices.decode(from, request.arguments(), std::move(buffers), arrived);
    if (!decoded.ok()) {
      call.reply(std::move(decoded));
      return;
    }
    streams = std::move(arrived.streams);
    call.tensors = std::move(arrived.tensors);
    call.sender_devices = sender_devices(request.arguments());
    call.fence = std::move(arrived.fence);
  }
  if (call.service == kPing) {
    call.reply(ServiceReply());
  } else if (call.service == kListCallees) {
    call.reply(serve_list_callees(call.body));
  } else if (layer != nullptr) {
    // kPing comes before this: connect_at_init and shutdown use it without any extension.
    layer->serve(std::move(call));
  } else {
    call.reply(absl::NotFoundError(
        absl::StrCat("service ", call.service, " is not linked into worker \"", runtime_.self.name, "\"")));
  }
}

}  // namespace gradwire::rpc
