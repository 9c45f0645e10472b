#include "gradwire/rpc/device/agent_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

// Without libtorch: a worker without devices. With devices: //tests/device_calls.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

const Worker kSelf = {"a", 0, 11};
const Worker kOther = {"b", 1, 22};

proto::WorkerRecord record_with(std::vector<std::string> devices) {
  proto::WorkerRecord record;
  for (const std::string& device : devices) record.add_devices(device);
  return record;
}

TEST(AgentDevices, AWorkerWithoutDevicesAnnouncesNone) {
  AgentDevices devices;
  ASSERT_TRUE(devices.start({}, kSelf).ok());
  EXPECT_FALSE(devices.any());
  proto::WorkerRecord record;
  devices.announce(record);
  EXPECT_EQ(record.devices_size(), 0);
}

TEST(AgentDevices, TensorsOnTheCpuMayArriveOnADevice) {
  RpcBackendOptions options;
  options.set_device_map("b", {{"cpu", "cuda:1"}});
  AgentDevices devices;
  ASSERT_TRUE(devices.start(options, kSelf).ok());
  ASSERT_TRUE(devices.joined(kOther, record_with({"cuda:0", "cuda:1"})).ok());
  const DeviceRoute route = devices.route_to(kOther, devices.map_for(kOther, nullptr));
  EXPECT_EQ(route.destination("cpu", 0)->str(), "cuda:1");
  const absl::Status none = route.destination("cuda:0", 0).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("the device map {cpu -> cuda:1}"));
  // When the worker has left, its devices are unknown. The call then fails with the reason of the loss.
  devices.left(kOther.incarnation);
  EXPECT_TRUE(devices.route_to(kOther, devices.map_for(kOther, nullptr)).destination("cpu", 0).ok());
}

TEST(AgentDevices, MapsAreCheckedAgainstTheDevicesOfTheOtherWorker) {
  RpcBackendOptions options;
  options.set_device_map("b", {{"cpu", "cuda:1"}});
  AgentDevices devices;
  ASSERT_TRUE(devices.start(options, kSelf).ok());
  const absl::Status status = devices.joined(kOther, record_with({"cuda:0", "no device", "cpu"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the devices of worker \"b\" are [cuda:0]"));
  EXPECT_TRUE(devices.joined({"c", 2, 33}, record_with({})).ok());
}

TEST(AgentDevices, MapsOfRequestsAreChecked) {
  proto::Request request;
  to_proto({{"cuda:0", "cuda:1"}}, request);
  EXPECT_EQ(to_string(*device_map_of(request)), "{cuda:0 -> cuda:1}");
  proto::DeviceEntry& twice = *request.mutable_device_map()->add_entries();
  twice.set_from("cuda:1");
  twice.set_to("cuda:1");
  EXPECT_EQ(device_map_of(request).status().code(), absl::StatusCode::kInvalidArgument);
  twice.set_to("/etc/passwd");
  EXPECT_EQ(device_map_of(request).status().code(), absl::StatusCode::kInvalidArgument);
  proto::Request many;
  for (int i = 0; i < 2000; ++i) *many.mutable_device_map()->add_entries() = twice;
  EXPECT_THAT(std::string(device_map_of(many).status().message()), HasSubstr("2000 entries"));
}

}  // namespace
}  // namespace gradwire::rpc
