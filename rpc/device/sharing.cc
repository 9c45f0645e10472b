#include "gradwire/rpc/device/sharing.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/device/ipc_services.h"

namespace gradwire::rpc {

SharingPairs::Use SharingPairs::ask(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  switch (pair.state) {
    case State::kUnknown:
      pair.state = State::kProbing;
      return Use::kProbe;
    case State::kWorks:
      return Use::kYes;
    default:
      return Use::kNo;
  }
}

bool SharingPairs::fail(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  return std::exchange(pair.state, State::kFails) != State::kFails;
}

void SharingPairs::succeed(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  if (pair.state == State::kProbing) pair.state = State::kWorks;
}

bool SharingPairs::interrupt(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  if (pair.state != State::kProbing) return false;
  if (++pair.interrupted > kMaxInterrupted) return fail(worker, device);
  pair.state = State::kUnknown;
  return false;
}

void SharingPairs::forget(uint64_t worker) {
  absl::erase_if(pairs_, [worker](const auto& entry) { return entry.first.first == worker; });
}

namespace {

constexpr int kWords = 8;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// Lets the tensor of a probe be shared, which is not known to work yet.
class Probing : public DeviceTransfers {
 public:
  explicit Probing(DeviceTransfers& inner) : inner_(inner) {}
  DeviceSharing& sharing() override { return inner_.sharing(); }
  bool can_send(uint64_t, const Device&) override { return true; }
  void refused(uint64_t, const Device&, const absl::Status& reason) override { reason_ = reason; }
  absl::StatusOr<Started> start(uint64_t worker, std::unique_ptr<Shipment> shipment) override {
    return inner_.start(worker, std::move(shipment));
  }
  std::shared_ptr<void> arrived(uint64_t, uint64_t) override { return nullptr; }
  absl::Status begin_read(uint64_t, uint64_t) override { return absl::InternalError("not for reading"); }
  void end_read(uint64_t, uint64_t) override {}

  const absl::Status& reason() const { return reason_; }

 private:
  DeviceTransfers& inner_;
  absl::Status reason_ = absl::UnknownError("the tensor was not shared");
};

// Writes a message with one shared tensor that has this content.
absl::Status encode(const SharingProbe& probe, uint64_t self, const std::string& content,
                    proto::Payload& payload, EncodedTensors& encoded) {
  TensorBackend& backend = *tensor_backend();
  const std::unique_ptr<StreamScope> streams = backend.enter_pool_streams();
  // 1. Make the tensor on the device, by decoding a message.
  proto::Payload made;
  proto::Tensor& tensor = *made.add_tensors();
  tensor.set_dtype(0);  // at::kByte
  tensor.add_sizes(static_cast<int64_t>(content.size()));
  tensor.set_inline_data(content);
  tensor.mutable_on_device()->set_device(probe.device.str());
  const DeviceArrival arrival{&probe.devices, self, self, nullptr};
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<TensorSet> tensors, backend.decode(made, {}, &arrival));
  // 2. Share it.
  Probing probing(*probe.transfers);
  DeviceRoute route;
  route.destinations = {probe.theirs};
  route.receiver = probe.to.name;
  route.receiver_devices = std::make_shared<const std::vector<Device>>(1, probe.theirs);
  route.from = self;
  route.to = probe.to.incarnation;
  route.local = false;
  route.transfers = &probing;
  GRADWIRE_RETURN_IF_ERROR(backend.encode(*tensors, TensorSharing::kCapture, &route, payload, encoded));
  return payload.has_transfer() ? absl::OkStatus() : probing.reason();
}

// Whether the answer has the content.
absl::Status check(const ServiceReply& reply, const std::string& content) {
  proto::Payload payload;
  std::vector<transport::Buffer> buffers;
  if (reply.tensors == nullptr || reply.tensors->size() != 1)
    return absl::FailedPreconditionError("the answer to the probe has no tensor");
  GRADWIRE_RETURN_IF_ERROR(
      tensor_backend()->encode(*reply.tensors, TensorSharing::kCapture, payload, buffers));
  if (payload.tensors(0).inline_data() != content)
    return absl::FailedPreconditionError("the other process has read other bytes than were written");
  return absl::OkStatus();
}

bool is_interruption(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

}  // namespace

void SharingProbe::send(ReferenceHost& host, std::function<void(absl::Status)> done) const {
  std::string content;
  for (int i = 0; i < kWords; ++i) absl::StrAppend(&content, absl::Hex(random_id(), absl::kZeroPad16));
  proto::SharingProbe message;
  auto encoded = std::make_shared<EncodedTensors>();
  if (absl::Status status =
          encode(*this, host.self().incarnation, content, *message.mutable_payload(), *encoded);
      !status.ok()) {
    done(absl::FailedPreconditionError(status.message()));
    return;
  }
  host.call_service(to, kSharingProbe, message.SerializeAsString(), nullptr,
                    {Clock::system().now() + kTimeout})
      .on_ready_inline([content, encoded, done](const absl::StatusOr<ServiceReply>& reply) {
        // `encoded` lets go of the transfer here.
        if (reply.ok()) {
          done(check(*reply, content));
        } else if (is_interruption(reply.status())) {
          done(reply.status());
        } else {
          done(absl::FailedPreconditionError(reply.status().message()));
        }
        encoded->handed_over = nullptr;
      });
}

void serve_probe(const ServiceCall& call, uint64_t self, const std::vector<Device>& devices,
                 DeviceTransfers& transfers) {
  proto::SharingProbe message;
  if (!message.ParseFromString(call.body) || message.payload().tensors_size() != 1 ||
      !message.payload().has_transfer()) {
    call.reply(absl::InvalidArgumentError("malformed SharingProbe"));
    return;
  }
  const std::shared_ptr<void> arrived =
      transfers.arrived(call.from.incarnation, message.payload().transfer().number());
  const std::unique_ptr<StreamScope> streams = tensor_backend()->enter_pool_streams();
  const DeviceArrival arrival{&devices, call.from.incarnation, self, &transfers};
  auto tensors = tensor_backend()->decode(message.payload(), {}, &arrival);
  if (!tensors.ok()) {
    // Not Unavailable, which would mean that the probe was not answered.
    call.reply(absl::FailedPreconditionError(tensors.status().message()));
    return;
  }
  // The content is copied to the host without a wait, and is sent when it is there.
  ServiceReply reply;
  reply.tensors = *std::move(tensors);
  reply.destinations = {Device()};
  call.reply(std::move(reply));
}

}  // namespace gradwire::rpc
