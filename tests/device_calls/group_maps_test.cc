// Device maps against the devices of other workers, at init and later.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/expectations.h"

namespace gradwire::rpc {
namespace {

using device_kind::on;
using ::testing::HasSubstr;

at::Tensor echo_in_group(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo_in_group)

constexpr char kWrong[] =
    "device_maps for worker \"b\": {lag:0 -> lag:7} (for results {lag:7 -> lag:0}) maps lag:0 to lag:7, but "
    "the devices of worker \"b\" are [lag:0, lag:1, lag:2]";

RpcBackendOptions at_store(const std::shared_ptr<store::HashStore>& store) {
  RpcBackendOptions options;
  options.store = store;
  return options;
}

TEST(GroupMaps, AMapToADeviceThatAnotherWorkerLacksFailsTheInit) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread other([&] { Agent::start("b", 1, 2, at_store(store))->shutdown(/*graceful=*/false); });
  RpcBackendOptions options = at_store(store);
  options.set_device_map("b", {{"lag:0", "lag:7"}});
  const absl::Status status = status_of([&] { Agent::start("a", 0, 2, options); });
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kWrong));
}

// Nobody can fail the init of "a" any more when "b" joins.
TEST(GroupMaps, AWorkerThatJoinsLaterWithoutTheDeviceIsReportedAndItsCallsFail) {
  const auto store = std::make_shared<store::HashStore>();
  RpcBackendOptions options = at_store(store);
  options.set_device_map("b", {{"lag:0", "lag:7"}, {"cpu", "lag:1"}});
  ::testing::internal::CaptureStderr();
  const std::shared_ptr<Agent> a = Agent::start("a", -1, 0, options);
  const std::shared_ptr<Agent> b = Agent::start("b", -1, 0, at_store(store));
  ASSERT_TRUE(status_of([&] { a->wait_for_worker("b", absl::Seconds(30)); }).ok());
  const absl::Status call = status_of([&] { a->rpc_sync<&echo_in_group>("b", on(0, at::ones({3}))); });
  EXPECT_EQ(call.code(), absl::StatusCode::kInvalidArgument) << call;
  EXPECT_THAT(std::string(call.message()),
              HasSubstr("a tensor on lag:0 would arrive on lag:7, but worker \"b\" has the devices"));
  // The other entry works.
  expect_equal(a->rpc_sync<&echo_in_group>("b", at::ones({3})), at::ones({3}));
  a->shutdown(/*graceful=*/false);
  b->shutdown(/*graceful=*/false);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("maps lag:0 to lag:7"));
}

}  // namespace
}  // namespace gradwire::rpc
