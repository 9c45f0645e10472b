#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/device/streams.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/expectations.h"

// Work that must wait for a stream that a test holds. If it is not ordered, it runs too early, and reads
// memory without its content.
namespace gradwire::rpc {
namespace {

at::Tensor copied_to(int device, const at::Tensor& x) {
  return x.to(lag::device(device), /*non_blocking=*/true);
}

at::Tensor scale_on_stream(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale_on_stream)

// Whether the function of then() has the current stream of its handler.
Future<std::string> stream_in_then(const at::Tensor& x) {
  const c10::Stream handlers = device::current_stream(x.device());
  return rpc_async<&scale_on_stream>("worker0", x, 2.0).then([handlers](const at::Tensor& y) -> std::string {
    const c10::Stream now = device::current_stream(y.device());
    return now == handlers ? "the same" : "another one";
  });
}
GRADWIRE_RPC(stream_in_then)

// An object with memory that is not known to those who keep it.
struct Box {
  explicit Box(at::Tensor v) : value(std::move(v)) {}
  at::Tensor value;
};
GRADWIRE_RPC_CLASS(Box, at::Tensor)

// The state of read_late(), until a test takes it.
struct Late {
  std::unique_ptr<lag::StreamHold> hold;
  at::Tensor product;
};
Late& late() {
  static auto* const late = new Late;
  return *late;
}

// Reads the value on the stream of handlers, which is held.
void read_late(const RRef<Box>& box) {
  const at::Tensor& value = box.local_value().value;
  late().hold = std::make_unique<lag::StreamHold>(device::current_stream(value.device()));
  late().product = value * 2;
}
GRADWIRE_RPC(read_late)

class HeldStreams : public ::testing::Test {
 protected:
  HeldStreams() { lag::set_lag(lag::Profile::none()); }
  ~HeldStreams() override { group_.expect_empty(); }

  // Calls `attach` with the future of a value that a held stream computes. The function that it attaches adds
  // 1 on its current stream.
  void expect_ordered(const std::function<Future<at::Tensor>(const Future<at::Tensor>&)>& attach) {
    const at::Tensor x = at::rand({5000});
    const at::Tensor there = copied_to(0, x);
    lag::synchronize_all();
    const c10::Stream stream = lag::unshared_stream(0);
    lag::StreamHold hold(stream);
    Future<at::Tensor> remote, sum, own_sum;
    Promise<at::Tensor> own(group_[0]->executor());
    {
      const c10::StreamGuard guard(stream);
      remote = group_[0]->rpc_async<&scale_on_stream>("worker1", there * 3, 2.0);
      own.set_value(there * 4);
    }
    sum = attach(remote);
    own_sum = attach(own.future());
    ASSERT_TRUE(sum.wait_for(absl::Seconds(60)) && own_sum.wait_for(absl::Seconds(60)));
    // Kernels that are not ordered run in this time.
    EXPECT_FALSE(lag::reaches_end_soon(lag::default_stream(0)));
    hold.release();
    expect_equal(sum.wait(), x * 3 * 2.0 + 1);
    expect_equal(own_sum.wait(), x * 4 + 1);
  }

  NothingLeft after_the_group_;
  testing::Group group_{2, with_channels({"local"})};
};

TEST_F(HeldStreams, AFunctionOfThenMayUseTheValue) {
  expect_ordered(
      [](const Future<at::Tensor>& value) { return value.then([](const at::Tensor& y) { return y + 1; }); });
}

TEST_F(HeldStreams, AFunctionOfOnReadyMayUseTheValue) {
  expect_ordered([](const Future<at::Tensor>& value) {
    const Promise<at::Tensor> sum;
    value.on_ready([sum](const absl::StatusOr<at::Tensor>& y) { sum.set_value(*y + 1); });
    return sum.future();
  });
}

TEST_F(HeldStreams, AFunctionOfThenInAHandlerHasTheStreamsOfTheHandler) {
  EXPECT_EQ(group_[0]->rpc_sync<&stream_in_then>("worker1", copied_to(0, at::rand({50}))), "the same");
}

// The allocator knows only that the default stream uses the memory of the value.
TEST_F(HeldStreams, AValueThatIsDroppedIsKeptUntilItsDeviceHasUsedIt) {
  const at::Tensor x = at::rand({5000});
  {
    const AgentGuard guard(group_[0]);
    const RRef<Box> box(Box(copied_to(0, x)));
    // The current stream of this thread waits for the handler, so it must not be the default stream.
    const c10::StreamGuard elsewhere(lag::unshared_stream(0));
    rpc_sync<&read_late>("worker0", box);
  }
  EXPECT_TRUE(eventually([&] { return group_[0]->tables().values == 0; }));
  // The default stream is not held, so it would write to the memory of the value at once.
  const at::Tensor other = at::full({5000}, 7.0, at::TensorOptions().device(lag::device(0)));
  EXPECT_TRUE(lag::reaches_end_soon(lag::default_stream(0)));
  late().hold = nullptr;
  lag::synchronize_all();
  expect_equal(std::exchange(late().product, at::Tensor()), x * 2);
}

}  // namespace
}  // namespace gradwire::rpc
