#include "gradwire/tests/device/lag_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/tests/device/lag_expect.h"

namespace gradwire {
namespace {

at::Tensor to_host(const at::Tensor& tensor) { return tensor.cpu(); }

class LagDevice : public ::testing::Test {
 protected:
  void TearDown() override { lag::expect_nothing_left(); }
};

TEST_F(LagDevice, HasItsName) {
  EXPECT_EQ(lag::device(1).str(), "lag:1");
  EXPECT_EQ(c10::Device("lag:2"), lag::device(2));
  EXPECT_EQ(lag::device_count(), 3);
  EXPECT_THROW(at::empty({1}, c10::Device("lag:3")), c10::Error);
  EXPECT_TRUE(at::empty({1}, lag::device(0)).is_privateuseone());
}

TEST_F(LagDevice, KeepsValues) {
  const at::Tensor x = at::randn({3, 5});
  for (int i = 0; i < 3; i++) {
    const at::Tensor y = x.to(lag::device(i));
    EXPECT_EQ(y.device(), lag::device(i));
    EXPECT_TRUE(to_host(y).equal(x));
    EXPECT_TRUE(to_host(y.to(lag::device((i + 1) % 3))).equal(x));
    EXPECT_TRUE(to_host(y.t().to(at::kDouble)).equal(x.t().to(at::kDouble)));
  }
}

TEST_F(LagDevice, Computes) {
  const at::Tensor x = at::randn({4, 4});
  const at::Tensor y = at::randn({4, 4});
  const at::Tensor a = x.to(lag::device(0));
  const at::Tensor b = y.to(lag::device(0));
  EXPECT_TRUE(to_host(a + b * 2).equal(x + y * 2));
  EXPECT_TRUE(to_host(a.matmul(b).relu().sum({1})).equal(x.matmul(y).relu().sum({1})));
  EXPECT_EQ(a.sum().item<float>(), x.sum().item<float>());
}

TEST_F(LagDevice, RunsBehindTheHost) {
  const at::Tensor x = at::randn({8}).to(lag::device(0));
  const lag::Counts before = lag::counts();
  c10::Stream side = lag::new_stream(0);
  lag::StreamHold hold(side);
  at::Tensor y;
  {
    const c10::StreamGuard guard(side);
    y = (x + 1).relu();
  }
  EXPECT_FALSE(side.query());
  EXPECT_EQ(lag::counts().host_waits, before.host_waits);
  hold.release();
  side.synchronize();
  EXPECT_EQ(lag::counts().host_waits, before.host_waits + 1);
  EXPECT_TRUE(to_host(y).equal((to_host(x) + 1).relu()));
}

TEST_F(LagDevice, EventsOrderStreams) {
  const at::Tensor x = at::randn({8}).to(lag::device(0));
  c10::Stream side = lag::new_stream(0);
  const c10::Stream main = lag::default_stream(0);
  lag::StreamHold hold(main);
  const at::Tensor y = x * 3;
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(main);
  EXPECT_FALSE(event.query());
  event.block(side);
  at::Tensor z;
  {
    const c10::StreamGuard guard(side);
    z = y + 1;
    y.record_stream(side);
  }
  hold.release();
  side.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(to_host(z).equal(to_host(x) * 3 + 1));
}

TEST_F(LagDevice, PinnedMemoryIsReadWhenTheStreamGetsThere) {
  const at::Tensor pinned = at::ones({4}, at::TensorOptions().pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  const at::Tensor pageable = at::ones({4});
  EXPECT_FALSE(pageable.is_pinned());
  const int64_t waits = lag::counts().host_waits;
  lag::StreamHold hold(lag::default_stream(0));
  const at::Tensor a = pinned.to(lag::device(0), at::kFloat, /*non_blocking=*/true);
  const at::Tensor b = pageable.to(lag::device(0), at::kFloat, /*non_blocking=*/true);
  EXPECT_EQ(lag::counts().host_waits, waits);
  pinned.fill_(7);
  pageable.fill_(7);
  hold.release();
  EXPECT_EQ(a.sum().item<float>(), 28);
  EXPECT_EQ(b.sum().item<float>(), 4);
}

}  // namespace
}  // namespace gradwire
