#include "gradwire/tests/device/lag_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/tests/device/lag_expect.h"

namespace gradwire {
namespace {

at::Tensor to_host(const at::Tensor& tensor) { return tensor.cpu(); }

class LagDevice : public ::testing::Test {
 protected:
  void TearDown() override {
    lag::set_lag({});
    lag::expect_nothing_left();
  }
};

at::TensorOptions pinned() { return at::TensorOptions().pinned_memory(true); }

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
  const at::Tensor host = at::ones({4}, pinned());
  EXPECT_TRUE(host.is_pinned());
  const at::Tensor pageable = at::ones({4});
  EXPECT_FALSE(pageable.is_pinned());
  const int64_t waits = lag::counts().host_waits;
  lag::StreamHold hold(lag::default_stream(0));
  const at::Tensor a = host.to(lag::device(0), at::kFloat, /*non_blocking=*/true);
  const at::Tensor b = pageable.to(lag::device(0), at::kFloat, /*non_blocking=*/true);
  EXPECT_EQ(lag::counts().host_waits, waits);
  host.fill_(7);
  pageable.fill_(7);
  hold.release();
  EXPECT_EQ(a.sum().item<float>(), 28);
  EXPECT_EQ(b.sum().item<float>(), 4);
}

TEST_F(LagDevice, PinnedMemoryIsUsedAgainAfterTheStream) {
  const int64_t pending = lag::counts().pending_host_blocks;
  lag::StreamHold hold(lag::default_stream(0));
  at::Tensor device;
  const void* address = nullptr;
  {
    const at::Tensor host = at::full({100}, 4.0, pinned());
    address = host.const_data_ptr();
    device = host.to(lag::device(0), at::kFloat, /*non_blocking=*/true);
  }
  EXPECT_EQ(lag::counts().pending_host_blocks, pending + 1);
  const at::Tensor other = at::full({100}, 5.0, pinned());
  EXPECT_NE(other.const_data_ptr(), address);
  hold.release();
  EXPECT_EQ(device.sum().item<float>(), 400);
  EXPECT_EQ(at::empty({100}, pinned()).const_data_ptr(), address);
}

TEST_F(LagDevice, CopyToTheHostIsWrittenWhenTheStreamGetsThere) {
  const at::Tensor device = at::ones({4}, lag::device(0));
  lag::synchronize_all();
  const at::Tensor pinned_host = at::zeros({4}, pinned());
  const at::Tensor pageable = at::zeros({4});
  const int64_t waits = lag::counts().host_waits;
  const c10::Stream stream = lag::default_stream(0);
  lag::StreamHold hold(stream);
  pinned_host.copy_(device, /*non_blocking=*/true);
  pageable.copy_(device, /*non_blocking=*/true);
  EXPECT_EQ(lag::counts().host_waits, waits);
  EXPECT_EQ(pinned_host.sum().item<float>(), 0);
  EXPECT_EQ(pageable.sum().item<float>(), 0);
  hold.release();
  stream.synchronize();
  EXPECT_EQ(pinned_host.sum().item<float>(), 4);
  EXPECT_EQ(pageable.sum().item<float>(), 4);
}

TEST_F(LagDevice, PageableHostMemoryMayBeFreedBeforeTheCopy) {
  const at::Tensor device = at::ones({1000}, lag::device(0));
  lag::StreamHold hold(lag::default_stream(0));
  { at::empty({1000}).copy_(device, /*non_blocking=*/true); }
  hold.release();
  lag::synchronize_all();
}

TEST_F(LagDevice, BlockingCopiesAreHostWaits) {
  const int64_t waits = lag::counts().host_waits;
  const at::Tensor device = at::ones({4}).to(lag::device(0));
  EXPECT_EQ(lag::counts().host_waits, waits + 1);
  device.cpu();
  EXPECT_EQ(lag::counts().host_waits, waits + 2);
  EXPECT_EQ(lag::host_waits().back().call, "copy");
  EXPECT_EQ(lag::host_waits().back().device, 0);
  device.to(lag::device(1));
  EXPECT_EQ(lag::counts().host_waits, waits + 2);
}

TEST_F(LagDevice, CopyBetweenDevicesOrdersBothStreams) {
  const at::Tensor x = at::ones({4}, lag::device(0));
  at::Tensor y = at::zeros({4}, lag::device(1));
  lag::synchronize_all();
  const c10::Stream from = lag::default_stream(0);
  const c10::Stream to = lag::default_stream(1);
  // The copy runs on the source's stream, after what the destination's stream did before.
  lag::StreamHold hold(to);
  y.add_(5);
  y.copy_(x, /*non_blocking=*/true);
  EXPECT_FALSE(from.query());
  const at::Tensor z = y + 1;
  hold.release();
  EXPECT_EQ(z.sum().item<float>(), 8);
}

TEST_F(LagDevice, FreedMemoryIsUsedAgainAtOnceOnItsStream) {
  lag::StreamHold hold(lag::default_stream(0));
  at::Tensor x = at::ones({100}, lag::device(0));
  const at::Tensor doubled = x * 2;
  const void* address = x.const_data_ptr();
  x = at::Tensor();
  const at::Tensor y = at::full({100}, 3.0, lag::device(0));
  EXPECT_EQ(y.const_data_ptr(), address);
  hold.release();
  EXPECT_EQ(doubled.sum().item<float>(), 200);
  EXPECT_EQ(y.sum().item<float>(), 300);
}

// The two halves of the rule: without record_stream() the side stream reads memory of the next tensor.
TEST_F(LagDevice, RecordStreamKeepsMemoryForAnotherStream) {
  for (const bool record : {true, false}) {
    const c10::Stream main = lag::default_stream(0);
    c10::Stream side = lag::new_stream(0);
    at::Tensor x = at::ones({100}, lag::device(0));
    c10::Event written(c10::DeviceType::PrivateUse1);
    written.record(main);
    side.wait(written);
    lag::StreamHold hold(side);
    at::Tensor sum;
    {
      const c10::StreamGuard guard(side);
      sum = x.sum();
    }
    if (record) x.record_stream(side);
    x = at::Tensor();
    EXPECT_EQ(lag::counts().pending_blocks, record ? 1 : 0);
    const at::Tensor next = at::full({100}, 3.0, lag::device(0));
    main.synchronize();
    hold.release();
    const c10::StreamGuard guard(side);
    EXPECT_EQ(sum.item<float>(), record ? 100 : 300);
  }
}

TEST_F(LagDevice, UnwrittenMemoryIsPoison) {
  const at::Tensor x = at::empty({10}, lag::device(2));
  EXPECT_TRUE(lag::is_poison(x.cpu()));
  EXPECT_TRUE(x.isnan().all().item<bool>());
  EXPECT_FALSE(lag::is_poison(at::ones({10}, lag::device(2)).cpu()));
}

TEST_F(LagDevice, FullMemoryIsAnOutOfMemoryError) {
  lag::set_capacity(1, 4 << 20);
  {
    const at::Tensor x = at::empty({3 << 20}, at::TensorOptions(at::kByte).device(lag::device(1)));
    EXPECT_THROW(at::empty({3 << 20}, at::TensorOptions(at::kByte).device(lag::device(1))),
                 c10::OutOfMemoryError);
  }
  EXPECT_NO_THROW(at::empty({4 << 20}, at::TensorOptions(at::kByte).device(lag::device(1))));
  lag::set_capacity(1, size_t{1} << 30);
}

TEST_F(LagDevice, LostDeviceFailsUntilRestored) {
  const at::Tensor x = at::ones({4}, lag::device(1));
  const at::Tensor other = at::ones({4}, lag::device(0));
  const c10::Stream stream = lag::default_stream(1);
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(stream);
  lag::lose(1, "test");
  EXPECT_THROW(x + 1, c10::AcceleratorError);
  EXPECT_THROW(x.item<float>(), c10::Error);
  EXPECT_THROW(x.cpu(), c10::AcceleratorError);
  EXPECT_THROW(at::empty({4}, lag::device(1)), c10::AcceleratorError);
  EXPECT_THROW(other.to(lag::device(1)), c10::AcceleratorError);
  EXPECT_THROW(stream.synchronize(), c10::AcceleratorError);
  EXPECT_THROW(stream.query(), c10::AcceleratorError);
  EXPECT_THROW(event.query(), c10::AcceleratorError);
  EXPECT_THROW(event.record(stream), c10::AcceleratorError);
  EXPECT_EQ((other + 1).sum().item<float>(), 8);
  lag::restore(1);
  EXPECT_EQ(at::ones({4}, lag::device(1)).sum().item<float>(), 4);
}

TEST_F(LagDevice, ErrorInAKernelLosesTheDevice) {
  const at::Tensor index = at::full({1}, 100, at::TensorOptions(at::kLong).device(lag::device(0)));
  const at::Tensor x = at::ones({4}, lag::device(0));
  // The host cannot know the index, so the call succeeds.
  EXPECT_NO_THROW(x.index_select(0, index));
  std::string message;
  try {
    lag::default_stream(0).synchronize();
  } catch (const c10::AcceleratorError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_NE(message.find("lag:0 is lost: a kernel failed: aten::index_select"), std::string::npos) << message;
  lag::restore(0);
}

TEST_F(LagDevice, WrongArgumentsAreRefusedAtTheCall) {
  const at::Tensor x = at::ones({4, 3}, lag::device(0));
  const int64_t waits = lag::counts().host_waits;
  EXPECT_THROW(x.mm(x), c10::Error);
  EXPECT_THROW(x + at::ones({5}, lag::device(0)), c10::Error);
  EXPECT_THROW(x + at::ones({4, 3}, lag::device(1)), c10::Error);
  EXPECT_THROW(x + at::ones({4, 3}), c10::Error);
  EXPECT_THROW(x.select(0, 0).expand({2, 3}).add_(1), c10::Error);
  EXPECT_EQ(lag::counts().host_waits, waits);
  EXPECT_EQ(x.sum().item<float>(), 12);
}

TEST_F(LagDevice, PrimaryContextAppearsWithTheFirstUse) {
  // No other test in this file uses the last device before this one, when it runs alone.
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(c10::DeviceType::PrivateUse1);
  at::ones({1}, lag::device(2));
  EXPECT_TRUE(hooks.hasPrimaryContext(2));
  EXPECT_EQ(hooks.deviceCount(), 3);
}

TEST_F(LagDevice, GuardsChangeDeviceAndStreamOfTheThread) {
  const c10::impl::VirtualGuardImpl impl(c10::DeviceType::PrivateUse1);
  EXPECT_EQ(impl.getDevice(), lag::device(0));
  {
    const c10::DeviceGuard guard(lag::device(2));
    EXPECT_EQ(impl.getDevice(), lag::device(2));
    EXPECT_EQ(at::empty({1}, at::TensorOptions(c10::DeviceType::PrivateUse1)).device(), lag::device(2));
  }
  EXPECT_EQ(impl.getDevice(), lag::device(0));
  c10::Stream side = lag::new_stream(1);
  {
    const c10::StreamGuard guard(side);
    EXPECT_EQ(impl.getDevice(), lag::device(1));
    EXPECT_EQ(impl.getStream(lag::device(1)), side);
    EXPECT_EQ(impl.getStream(lag::device(0)), lag::default_stream(0));
  }
  EXPECT_EQ(impl.getDevice(), lag::device(0));
  EXPECT_EQ(impl.getStream(lag::device(1)), lag::default_stream(1));
  EXPECT_EQ(impl.getDefaultStream(lag::device(1)), lag::default_stream(1));
}

TEST_F(LagDevice, IsTheAcceleratorOfLibtorch) {
  EXPECT_EQ(at::getAccelerator(), c10::DeviceType::PrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), 3);
  const c10::Stream side = lag::new_stream(1);
  at::accelerator::setCurrentStream(side);
  EXPECT_EQ(at::accelerator::getCurrentStream(1), side);
  at::accelerator::setCurrentStream(lag::default_stream(1));
  at::accelerator::setDeviceIndex(0);
  const int64_t waits = lag::counts().host_waits;
  at::accelerator::synchronizeDevice(1);
  EXPECT_EQ(lag::counts().host_waits, waits + 1);
  const at::Tensor x = at::ones({4}, lag::device(0));
  EXPECT_GT(at::accelerator::getDeviceStats(0).allocated_bytes[0].current, 0);
  at::accelerator::emptyCache();
}

// As for memory that belongs to another process and is mapped here.
TEST_F(LagDevice, TensorsOverForeignMemoryWork) {
  std::vector<float> foreign(4, 2);
  const at::Tensor x = at::for_blob(foreign.data(), {4})
                           .options(at::TensorOptions().device(lag::device(1)))
                           .target_device(lag::device(1))
                           .make_tensor();
  EXPECT_EQ(x.device(), lag::device(1));
  x.record_stream(lag::default_stream(1));
  EXPECT_EQ((x.mul_(3) + 1).sum().item<float>(), 28);
  EXPECT_EQ(foreign[3], 6);
  EXPECT_THROW(lag::block_of(x), c10::Error);
}

TEST_F(LagDevice, TimedEventsMeasure) {
  const c10::Stream stream = lag::default_stream(0);
  c10::Event start(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  start.record(stream);
  at::ones({4}, lag::device(0));
  end.record(stream);
  end.synchronize();
  EXPECT_GE(start.elapsedTime(end), 0);
}

TEST_F(LagDevice, KernelsOfTestsRunInOrder) {
  const at::Tensor x = at::ones({4}, lag::device(0));
  const c10::Stream stream = lag::default_stream(0);
  lag::launch(stream, [data = x.data_ptr<float>()] { data[0] = 7; });
  EXPECT_EQ((x + 1).sum().item<float>(), 14);
}

TEST_F(LagDevice, BlockIsAPartOfTheDevicesMemory) {
  const at::Tensor x = at::ones({100}, lag::device(1)).slice(0, 10, 20);
  const lag::DeviceMemory memory = lag::device_memory(1);
  const lag::MemoryBlock block = lag::block_of(x);
  EXPECT_EQ(block.size, 400);
  EXPECT_EQ(memory.base + block.offset + 40, x.const_data_ptr());
  EXPECT_GT(memory.fd, 0);
  EXPECT_GT(memory.size, block.offset);
}

}  // namespace
}  // namespace gradwire
