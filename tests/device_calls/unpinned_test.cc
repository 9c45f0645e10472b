// A system that refuses to pin memory of the host.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/base/testing/log_lines.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/expectations.h"

namespace gradwire::rpc {
namespace {

using device_kind::on;

at::Tensor doubled(const at::Tensor& x) { return x * 2; }
GRADWIRE_RPC(doubled)

TEST(Unpinned, TensorsTravelThroughOtherMemoryAndOneLineSaysSo) {
  device_kind::begin(3);
  const NothingLeft after_the_group;
  testing::Group group(2, with_channels({"host"}));
  lag::pinning_refused() = true;
  ::testing::internal::CaptureStderr();
  // The second one is sent in pieces.
  for (const at::Tensor& x : {at::rand({1000}), at::rand({3 << 20})}) {
    for (int i = 0; i < 3; ++i) {
      at::Tensor there = on(0, x);
      device_kind::delay(there.device());
      there = there + i;
      expect_equal(group[0]->rpc_sync<&doubled>("worker1", there), (x + i) * 2);
    }
  }
  lag::pinning_refused() = false;
  EXPECT_THAT(captured_lines("pinned"),
              ::testing::ElementsAre(::testing::HasSubstr("the system refuses to pin memory")));
}

}  // namespace
}  // namespace gradwire::rpc
