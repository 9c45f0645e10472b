#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"

// Descriptions of shared memory that another process could forge. Each one is refused before a stream reads
// anything.
namespace gradwire::rpc {
namespace {

// Both ends of transfers in this process, without agents.
class Ends : public DeviceTransfers {
 public:
  DeviceSharing& sharing() override { return *sharing_; }
  bool can_send(uint64_t, const Device&) override { return true; }
  void refused(uint64_t, const Device&, const absl::Status& reason) override { ADD_FAILURE() << reason; }
  absl::StatusOr<Started> start(uint64_t, std::unique_ptr<Shipment> shipment) override {
    shipments_.push_back(std::move(shipment));
    return Started{shipments_.size(), nullptr};
  }
  std::shared_ptr<void> arrived(uint64_t, uint64_t) override { return nullptr; }
  absl::Status begin_read(uint64_t, uint64_t) override {
    ++reading;
    return absl::OkStatus();
  }
  void end_read(uint64_t, uint64_t) override { --reading; }

  int reading = 0;

 private:
  const std::unique_ptr<DeviceSharing> sharing_ =
      tensor_backend()->share_devices({Device("lag:0"), Device("lag:1")});
  std::vector<std::unique_ptr<Shipment>> shipments_;
};

class IpcHostile : public ::testing::Test {
 protected:
  static constexpr uint64_t kA = 0xA, kB = 0xB;

  IpcHostile() {
    EXPECT_TRUE(ends_.sharing().identity("lag:0").ok());
    (void)tensor_backend()->accelerators();
  }

  // An honest message with one tensor of 10 x 20 floats.
  proto::Payload message(const at::Tensor& tensor) {
    TorchTensors tensors;
    tensors.add(tensor, false);
    DeviceRoute route;
    route.receiver_devices = devices_;
    route.from = kA;
    route.to = kB;
    route.local = false;
    route.transfers = &ends_;
    proto::Payload payload;
    EncodedTensors encoded;
    EXPECT_TRUE(tensor_backend()->encode(tensors, TensorSharing::kCapture, &route, payload, encoded).ok());
    EXPECT_TRUE(payload.tensors(0).on_device().has_shared());
    return payload;
  }

  absl::StatusOr<at::Tensor> decode(const proto::Payload& payload) {
    const DeviceArrival arrival{devices_.get(), kA, kB, &ends_};
    auto tensors = tensor_backend()->decode(payload, {}, &arrival);
    EXPECT_EQ(ends_.reading, 0);
    if (!tensors.ok()) return tensors.status();
    return static_cast<TorchTensors&>(**tensors).tensors[0];
  }

  const std::shared_ptr<const std::vector<Device>> devices_ =
      std::make_shared<const std::vector<Device>>(std::vector<Device>{"lag:0", "lag:1"});
  Ends ends_;
};

TEST_F(IpcHostile, AnHonestDescriptionIsRead) {
  const at::Tensor x = at::rand({10, 20});
  const absl::StatusOr<at::Tensor> got = decode(message(x.to(lag::device(0))));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(at::equal(got->cpu(), x));
}

TEST_F(IpcHostile, WrongDescriptionsAreRefusedBeforeAnythingIsRead) {
  using Forge = std::function<void(proto::Payload&)>;
  const auto tensor = [](std::function<void(proto::Tensor&)> change) -> Forge {
    return [change](proto::Payload& payload) { change(*payload.mutable_tensors(0)); };
  };
  const auto shared = [](std::function<void(proto::SharedMemory&)> change) -> Forge {
    return [change](proto::Payload& payload) {
      change(*payload.mutable_tensors(0)->mutable_on_device()->mutable_shared());
    };
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const std::pair<const char*, Forge> forgeries[] = {
      {"offset beyond the size", shared([](auto& s) { s.set_offset(s.size()); })},
      {"offset so that the sum overflows", shared([](auto& s) { s.set_offset(kMax - 10); })},
      {"last byte outside", shared([](auto& s) { s.set_offset(s.size() - 799); })},
      {"size smaller than the tensor", shared([](auto& s) { s.set_size(799); })},
      {"huge size", shared([](auto& s) { s.set_size(kMax); })},
      {"a larger allocation than exists", shared([](auto& s) { s.set_size(uint64_t{1} << 40); })},
      {"a foreign handle", shared([](auto& s) { s.set_handle("not a handle"); })},
      {"no handle", shared([](auto& s) { s.clear_handle(); })},
      {"an event's handle", [](proto::Payload& p) {
         proto::SharedMemory& memory = *p.mutable_tensors(0)->mutable_on_device()->mutable_shared();
         memory.set_handle(p.transfer().devices(0).ready());
       }},
      {"a long handle", shared([](auto& s) { s.set_handle(std::string(5000, 'x')); })},
      {"unknown device", shared([](auto& s) { s.set_device(1); })},
      {"device out of range", shared([](auto& s) { s.set_device(4'000'000'000); })},
      {"huge sizes", tensor([](auto& t) { t.set_sizes(0, int64_t{1} << 61); })},
      {"sizes beyond the allocation", tensor([](auto& t) { t.set_sizes(0, 1'000'000); })},
      {"negative size", tensor([](auto& t) { t.set_sizes(0, -10); })},
      {"no elements", tensor([](auto& t) { t.set_sizes(0, 0); })},
      {"strides with gaps", tensor([](auto& t) {
         t.add_strides(40);
         t.add_strides(2);
       })},
      {"overlapping elements", tensor([](auto& t) {
         t.add_strides(0);
         t.add_strides(1);
       })},
      {"unknown dtype", tensor([](auto& t) { t.set_dtype(9999); })},
      {"quantized dtype", tensor([](auto& t) { t.set_dtype(static_cast<uint32_t>(at::kQInt8)); })},
      {"sparse", tensor([](auto& t) { t.set_kind(proto::Tensor::SPARSE_COO); })},
      {"inline data too", tensor([](auto& t) { t.set_inline_data("abc"); })},
      {"a buffer too", tensor([](auto& t) { t.set_buffer(1); })},
      {"handed over too", tensor([](auto& t) { t.mutable_on_device()->set_handed_over(1); })},
      {"on the CPU", tensor([](auto& t) { t.mutable_on_device()->clear_device(); })},
      {"on an unknown device", tensor([](auto& t) { t.mutable_on_device()->set_device("lag:2"); })},
      {"no transfer", [](proto::Payload& p) { p.clear_transfer(); }},
      {"unknown physical device", [](proto::Payload& p) {
         p.mutable_transfer()->mutable_devices(0)->set_identity("GPU-other");
       }},
      {"a foreign event", [](proto::Payload& p) {
         p.mutable_transfer()->mutable_devices(0)->set_ready("not an event");
       }},
      {"memory as an event", [](proto::Payload& p) {
         p.mutable_transfer()->mutable_devices(0)->set_consumed(p.tensors(0).on_device().shared().handle());
       }},
      {"many devices", [](proto::Payload& p) {
         for (int i = 0; i < 65; ++i) p.mutable_transfer()->add_devices();
       }},
  };
  const proto::Payload honest = message(at::rand({10, 20}).to(lag::device(0)));
  lag::synchronize_all();
  for (const auto& [what, forge] : forgeries) {
    proto::Payload forged = honest;
    forge(forged);
    const int64_t copies = lag::ipc_counts().copies;
    const absl::StatusOr<at::Tensor> got = decode(forged);
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument) << what << ": " << got.status();
    EXPECT_EQ(lag::ipc_counts().copies, copies) << what;
  }
  EXPECT_TRUE(decode(honest).ok());
}

TEST_F(IpcHostile, BytesOfABoolAreMadeZeroOrOne) {
  proto::Payload payload = message(at::arange(200, at::kByte).to(lag::device(0)));
  payload.mutable_tensors(0)->set_dtype(static_cast<uint32_t>(at::kBool));
  const absl::StatusOr<at::Tensor> got = decode(payload);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->scalar_type(), at::kBool);
  const at::Tensor bytes = got->cpu().view(at::kByte);
  EXPECT_TRUE(at::equal(bytes, at::arange(200, at::kByte).ne(0).to(at::kByte)));
}

TEST_F(IpcHostile, OneAllocationHasOneSize) {
  const proto::Payload honest = message(at::rand({10, 20}).to(lag::device(0)));
  ASSERT_TRUE(decode(honest).ok());
  proto::Payload forged = honest;
  forged.mutable_tensors(0)->mutable_on_device()->mutable_shared()->set_size(
      honest.tensors(0).on_device().shared().size() + 4096);
  EXPECT_EQ(decode(forged).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::rpc
