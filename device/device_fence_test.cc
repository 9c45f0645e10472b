#include "gradwire/device/device_fence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <thread>

#include "gradwire/device/streams.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::device {
namespace {

TEST(DeviceFence, OtherThreadReadsWhatWasComputedBefore) {
  for (const bool of_tensor : {false, true}) {
    const at::Tensor source = at::randn({16});
    const at::Tensor on_device = source.to(lag::device(1));
    at::Tensor read;
    const int64_t waits = lag::counts().host_waits;
    {
      const c10::Stream stream = lag::new_stream(1);
      const c10::StreamGuard guard(stream);
      lag::StreamHold hold(stream);
      const at::Tensor computed = on_device * 3;
      const DeviceFence fence = of_tensor ? DeviceFence::record({source, computed}) : DeviceFence::record();
      EXPECT_FALSE(fence.empty());
      std::thread([&] {
        const c10::StreamGuard other(lag::new_stream(1));
        fence.wait();
        record_use_on_current_streams({computed});
        read = computed * 1;
      }).join();
    }
    EXPECT_EQ(lag::counts().host_waits, waits);
    lag::synchronize_all();
    EXPECT_TRUE(at::equal(read.cpu(), source * 3)) << of_tensor;
  }
  lag::expect_nothing_left();
}

TEST(DeviceFence, TensorsOnTheCpuGiveAnEmptyFence) {
  const DeviceFence fence = DeviceFence::record({at::randn({2}), at::Tensor()});
  EXPECT_TRUE(fence.empty());
  fence.wait();
  EXPECT_TRUE(DeviceFence().empty());
}

}  // namespace
}  // namespace gradwire::device
