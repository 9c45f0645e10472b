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
      const StreamFencePtr fence =
          of_tensor ? DeviceFence::record_for({source, computed}) : DeviceFence::record();
      ASSERT_NE(fence, nullptr);
      EXPECT_FALSE(*fence->reached());
      std::thread([&] {
        const c10::StreamGuard other(lag::new_stream(1));
        EXPECT_TRUE(fence->wait().ok());
        if (!of_tensor) record_use(computed, current_stream(computed.device()));
        read = computed * 1;
      }).join();
    }
    EXPECT_EQ(lag::counts().host_waits, waits);
    lag::synchronize_all();
    EXPECT_TRUE(at::equal(read.cpu(), source * 3)) << of_tensor;
  }
  lag::expect_nothing_left();
}

TEST(DeviceFence, TensorsOnTheCpuNeedNone) {
  EXPECT_EQ(DeviceFence::record_for({at::randn({2}), at::Tensor()}), nullptr);
}

}  // namespace
}  // namespace gradwire::device
