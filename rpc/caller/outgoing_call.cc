#include "gradwire/rpc/caller/outgoing_call.h"

#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/caller/request_steps.h"
#include "gradwire/rpc/rref/service.h"

// The first half of a call: from the arguments to a complete request. The second half, from sending to the
// answer, is Caller.
namespace gradwire::rpc {

struct OutgoingCall::Impl : RequestParts {
  using RequestParts::RequestParts;
};

OutgoingCall::OutgoingCall(Caller& caller, const Destination& destination, std::string callee)
    : caller_(caller),
      impl_(std::make_unique<Impl>(caller.rrefs())),
      to_(nullptr),
      request_(impl_->request()),
      encoder_(*request_.mutable_arguments(), &impl_->references) {
  to_ = &open_request(caller, destination, std::move(callee), Clock::system().now(), *impl_, status_);
}

// A call that was not sent, for example because the Codec of an argument threw, may hold references already.
// Their forks would stay until the receiver is lost, because no message brings them there.
OutgoingCall::~OutgoingCall() {
  if (!sent_) caller_.rrefs().undo(request().arguments(), *to_);
}

void OutgoingCall::set_stream_of(std::shared_ptr<const std::string> function) {
  impl_->call->stream_of = std::move(function);
}

bool OutgoingCall::is_repeatable() const {
  return idempotent_ && may_repeat(caller_.runtime(), request_, *to_);
}

absl::Status OutgoingCall::encode(const TensorSet& tensors, const DeviceMap* map, TensorSharing sharing,
                                  bool repeatable, EncodedTensors& encoded) {
  const AgentDevices& devices = caller_.runtime().devices;
  proto::Payload& payload = *request_.mutable_arguments();
  if (map == nullptr && !devices.any())
    return tensor_backend()->encode(tensors, sharing, nullptr, payload, encoded);
  DeviceRoute route = devices.route_to(*to_, map);
  route.as_bytes |= repeatable;
  return tensor_backend()->encode(tensors, sharing, &route, payload, encoded);
}

uint64_t OutgoingCall::send(Completion done) {
  // From here on send_request() takes the references back if it fails, not the destructor.
  sent_ = true;
  std::unique_ptr<TensorSet> tensors = encoder_.take_tensors();
  const auto is_repeatable = [this] { return this->is_repeatable(); };
  const auto encode_all = [this, &tensors](const DeviceMap* map, bool repeatable, EncodedTensors& encoded) {
    // For a repeatable call the tensors are copied, because the caller may change them before a repetition is
    // sent.
    const TensorSharing sharing = repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow;
    absl::Status status = encode(*tensors, map, sharing, repeatable, encoded);
    // Tensors that were given away are now owned by the buffers alone.
    tensors = nullptr;
    return status;
  };
  return send_request({.caller = caller_,
                       .parts = *impl_,
                       .to = *to_,
                       .borrow = borrow_,
                       .tensors = tensors.get(),
                       .is_repeatable = is_repeatable,
                       .encode = encode_all},
                      status_, std::move(done));
}

}  // namespace gradwire::rpc
