#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/carried.h"
#include "gradwire/tests/device_calls/expectations.h"

// Failures, device maps and modules on the test accelerator, which has several devices and can fail at will.
// device_calls_cases.cc has the calls that succeed, for every kind of accelerator.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

at::Tensor echo(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo)

std::string device_of(const at::Tensor& x) { return x.device().str(); }
GRADWIRE_RPC(device_of)

at::Tensor on_lag(int device, const at::Tensor& x) {
  return x.to(lag::device(device), /*non_blocking=*/true);
}

// The argument: the channel.
class DeviceModules : public ::testing::TestWithParam<const char*> {
 protected:
  DeviceModules() { lag::set_lag({}); }
  ~DeviceModules() override { group_.expect_empty(); }
  NothingLeft after_the_group_;
  testing::Group group_{3, with_channels({GetParam()})};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceModules, ::testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceModules, RemoteModulesLiveOnADevice) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::LinearImpl> remote("worker1/lag:1", 5, 3);
  torch::nn::LinearImpl local(5, 3);
  const std::map<std::string, at::Tensor> state = state_dict(local);
  remote.load_state_dict(state);
  EXPECT_EQ(remote.remote_parameters()[0].rpc_sync<at::Tensor>(Op("aten::detach")).device(), lag::device(1));
  const at::Tensor x = at::rand({4, 5});
  const at::Tensor expected = local.forward(x).detach();
  // Inputs on the CPU travel to the module, and its results back to the CPU.
  const at::Tensor on_cpu = remote.forward(x).detach();
  EXPECT_TRUE(on_cpu.device().is_cpu());
  expect_equal(on_cpu, expected);
  // Inputs on a device of the caller: results travel by the device map.
  const at::Tensor on_device = remote.forward_async(on_lag(0, x)).wait().detach();
  EXPECT_EQ(on_device.device(), lag::device(1));
  expect_equal(on_device, expected);
  expect_equal(remote.state_dict().at("weight"), state.at("weight"));
  const absl::Status status =
      status_of([] { RemoteModule<torch::nn::LinearImpl> none("worker1/lag:9", 5, 3); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot move the module to lag:9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[lag:0, lag:1, lag:2]"));
}

// ---- Failures

at::Tensor grow(const at::Tensor& x) { return x.repeat({1000}); }
GRADWIRE_RPC(grow)
int64_t count(const at::Tensor& x) { return x.numel(); }
GRADWIRE_RPC(count)

// The channel, and the transport of its messages.
struct Way {
  const char* channel;
  const char* transport;
};
const auto kWays =
    ::testing::Values(Way{"local", "shm"}, Way{"ipc", "shm"}, Way{"host", "shm"}, Way{"host", "tcp"});
std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  return absl::StrCat(info.param.channel, "_", info.param.transport);
}
RpcBackendOptions by(const Carried& carried, const Way& way) {
  return carried.over(way.transport, with_channels({way.channel}));
}

// Tensors on lag:0 of the caller arrive on lag:1.
class DeviceFailures : public ::testing::TestWithParam<Way> {
 protected:
  RpcBackendOptions options() const {
    RpcBackendOptions options = by(carried_, GetParam());
    options.set_device_map("worker1", {{"lag:0", "lag:1"}});
    options.set_devices({"lag:0", "lag:1"});
    return options;
  }
  // With the channel "local" no bytes of tensors travel, with "ipc" those of the first messages.
  ~DeviceFailures() override {
    const std::string channel = GetParam().channel;
    if (channel == "local") {
      EXPECT_EQ(carried_.bytes(GetParam().transport), 0u);
    } else if (channel == "host") {
      carried_.expect_only(GetParam().transport, 4'000);
    }
  }

  const Carried carried_;
  NothingLeft after_the_group_;
  testing::Group group_{2, options()};
  // Another device has no entry in the map.
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam().channel, group_, {0});
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceFailures, kWays, name_of);

TEST_P(DeviceFailures, OutOfMemoryAtTheCalleeIsResourceExhausted) {
  const at::Tensor x = on_lag(0, at::ones({10'000}));
  EXPECT_EQ(group_[0]->rpc_sync<&count>("worker1", x), 10'000);
  lag::synchronize_all();
  lag::set_capacity(1, 1 << 20);
  const absl::Status in_handler = status_of([&] { (void)group_[0]->rpc_sync<&grow>("worker1", x); });
  EXPECT_EQ(in_handler.code(), absl::StatusCode::kResourceExhausted) << in_handler;
  EXPECT_THAT(std::string(in_handler.message()), HasSubstr("grow"));
  const at::Tensor large = on_lag(0, at::ones({1'000'000}));
  const absl::Status in_argument = status_of([&] { (void)group_[0]->rpc_sync<&count>("worker1", large); });
  EXPECT_EQ(in_argument.code(), absl::StatusCode::kResourceExhausted) << in_argument;
  EXPECT_THAT(std::string(in_argument.message()), HasSubstr("tensor 0 of the message"));
  // The worker goes on.
  EXPECT_EQ(group_[0]->rpc_sync<&count>("worker1", x), 10'000);
  lag::set_capacity(1, std::size_t{1} << 30);
}

TEST_P(DeviceFailures, ALostDeviceIsAnErrorAndTheCpuGoesOn) {
  const at::Tensor x = on_lag(0, at::ones({1000}));
  EXPECT_EQ(group_[0]->rpc_sync<&count>("worker1", x), 1000);
  lag::synchronize_all();
  lag::lose(1, "fell off the bus");
  const absl::Status lost = status_of([&] { (void)group_[0]->rpc_sync<&count>("worker1", x); });
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("a device is lost"));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("fell off the bus"));
  EXPECT_EQ(group_[0]->rpc_sync<&count>("worker1", at::ones({7})), 7);
  expect_equal(group_[1]->rpc_sync<&scale>("worker0", at::ones({7}), 2.0), at::full({7}, 2.0));
  lag::restore(1);
}

// A number of CUDA that is only an error of one call.
TEST(DeviceErrors, AnErrorThatDoesNotStayIsNotALostDevice) {
  const auto status_for = [](int number) {
    const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    return status_from_exception(std::make_exception_ptr(c10::AcceleratorError(here, number, "it failed")));
  };
  EXPECT_EQ(status_for(1), absl::UnknownError("c10::AcceleratorError: it failed"));
  EXPECT_EQ(status_for(2), absl::ResourceExhaustedError("c10::AcceleratorError: it failed"));
  EXPECT_EQ(status_for(719), absl::InternalError("a device is lost: c10::AcceleratorError: it failed"));
}

// ---- Device maps

TEST(DeviceMaps, TensorsTravelByTheMapAndBackByItsInverse) {
  RpcBackendOptions options;
  options.set_device_map("worker1", {{"lag:0", "lag:1"}, {"lag:1", "lag:0"}});
  testing::Group group(2, options);
  const at::Tensor x = at::rand({100});
  EXPECT_EQ(group[0]->rpc_sync<&device_of>("worker1", on_lag(0, x)), "lag:1");
  EXPECT_EQ(group[1]->rpc_sync<&device_of>("worker0", on_lag(0, x)), "lag:0");
  const at::Tensor y = group[0]->rpc_sync<&scale>("worker1", on_lag(1, x), 2.0);
  EXPECT_EQ(y.device(), lag::device(1));
  expect_equal(y, x * 2.0);
  // For one call.
  const Destination other = Destination("worker1").with_device_map({{"lag:0", "cpu"}, {"cpu", "lag:1"}});
  EXPECT_EQ(group[0]->rpc_sync<&device_of>(other, on_lag(0, x)), "cpu");
  EXPECT_EQ(group[0]->rpc_sync<&device_of>(other, x), "lag:1");
  const at::Tensor z = group[0]->rpc_sync<&scale>(other, on_lag(0, x), 2.0);
  EXPECT_EQ(z.device(), lag::device(0));
  expect_equal(z, x * 2.0);
}

TEST(DeviceMaps, SetDeviceMapAddsEntriesAndReplacesThoseOfTheSameDevice) {
  RpcBackendOptions options;
  options.set_device_map("worker1", {{"lag:0", "lag:1"}, {"lag:1", "lag:0"}});
  options.set_device_map("worker0", {{"lag:0", "lag:2"}});
  options.set_device_map("worker1", {{"lag:1", "lag:2"}, {"lag:2", "lag:0"}});
  const DeviceMap both = {{"lag:0", "lag:1"}, {"lag:1", "lag:2"}, {"lag:2", "lag:0"}};
  EXPECT_EQ(options.device_maps.at("worker1"), both);
  NothingLeft after_the_group;
  testing::Group group(2, options);
  const at::Tensor x = at::rand({100});
  EXPECT_EQ(group[0]->rpc_sync<&device_of>("worker1", on_lag(0, x)), "lag:1");
  EXPECT_EQ(group[0]->rpc_sync<&device_of>("worker1", on_lag(1, x)), "lag:2");
  EXPECT_EQ(group[0]->rpc_sync<&device_of>("worker1", on_lag(2, x)), "lag:0");
  EXPECT_EQ(group[1]->rpc_sync<&device_of>("worker0", on_lag(0, x)), "lag:2");
  // The inverse has the entries of both calls, too.
  for (const int device : {0, 1, 2}) {
    const at::Tensor y = group[0]->rpc_sync<&scale>("worker1", on_lag(device, x), 2.0);
    EXPECT_EQ(y.device(), lag::device(device));
    expect_equal(y, x * 2.0);
  }
  group.expect_empty();
}

TEST(DeviceMaps, ADeviceWithoutAnEntryIsAnErrorBeforeAnythingIsSent) {
  RpcBackendOptions options;
  options.set_device_map("worker1", {{"lag:0", "lag:1"}});
  options.set_devices({"lag:0", "lag:1", "lag:2"});
  NothingLeft after_the_group;
  testing::Group group(2, options);
  const uint64_t sent = group[0]->statistics().bytes_sent;
  const absl::Status status =
      status_of([&] { group[0]->rpc_sync<&echo>("worker1", on_lag(1, at::ones({1 << 22}))); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  // Heartbeats are sent meanwhile, but not the 16 MiB of the tensor.
  EXPECT_LT(group[0]->statistics().bytes_sent - sent, 1u << 20);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a tensor on lag:1 cannot travel to worker \"worker1\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("{lag:0 -> lag:1} (for results {lag:1 -> lag:0})"));
  // The result of a handler.
  const absl::Status back = status_of([&] {
    group[0]->rpc_sync<at::Tensor>("worker1", Op("aten::ones"), std::vector<int64_t>{2},
                                   kw("device", c10::Device(lag::device(2))));
  });
  EXPECT_THAT(std::string(back.message()), HasSubstr("cannot travel back to worker \"worker0\""));
}

TEST(DeviceMaps, AreCheckedAtInit) {
  const auto start = [](RpcBackendOptions options) {
    options.store = std::make_shared<store::HashStore>();
    return status_of([&] { Agent::start("a", 0, 1, options)->shutdown(); });
  };
  RpcBackendOptions options;
  options.set_device_map("a", {{"lag:0", "lag:1"}, {"lag:1", "lag:1"}});
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("is not one to one: lag:1 occurs twice"));
  options = {};
  options.set_device_map("a", {{"lag:7", "lag:1"}});
  EXPECT_THAT(std::string(start(options).message()),
              HasSubstr("has lag:7, but worker \"a\" has the devices"));
  options = {};
  options.set_device_map("a", {{"lag:0", "lag:7"}});
  EXPECT_THAT(std::string(start(options).message()),
              HasSubstr("maps lag:0 to lag:7, but the devices of worker \"a\" are [lag:0]"));
  options = {};
  options.set_devices({"cuda:0"});
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("worker \"a\" has no cuda:0"));
  options = {};
  options.channels = {"pigeon"};
  EXPECT_THAT(std::string(start(options).message()), HasSubstr("unknown channel \"pigeon\""));
}

}  // namespace
}  // namespace gradwire::rpc
