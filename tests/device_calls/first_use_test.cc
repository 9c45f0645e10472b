// The first tensor on a device that the process has not used before.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "gradwire/device/streams.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/expectations.h"

namespace gradwire::rpc {
namespace {

int64_t stream_of_handler(const at::Tensor& x) { return device::current_stream(x.device()).id(); }
GRADWIRE_RPC(stream_of_handler)

// If the first handler ran on the default stream, nothing would order it with a second one that runs at the
// same time and takes turns with it through a mutex.
TEST(FirstUse, TheFirstHandlerRunsOnTheStreamOfTheOthers) {
  testing::Group group(2, with_channels({"host"}));
  ASSERT_FALSE(at::globalContext().getAcceleratorHooksInterface().hasPrimaryContext(2))
      << "something has used the device";
  const Destination there = Destination("worker1").with_device_map({{"cpu", "lag:2"}});
  const auto first = group[0]->rpc_sync<&stream_of_handler>(there, at::ones({3}));
  const auto second = group[0]->rpc_sync<&stream_of_handler>(there, at::ones({3}));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, lag::default_stream(2).id());
}

}  // namespace
}  // namespace gradwire::rpc
