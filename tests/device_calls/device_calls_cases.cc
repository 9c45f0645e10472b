#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device_calls/device_kind.h"
#include "gradwire/tests/device_calls/expectations.h"

// Calls with tensors on the devices of an accelerator whose streams run late.
namespace gradwire::rpc {
namespace {

using device_kind::delay;
using device_kind::device;
using device_kind::Hold;
using device_kind::on;

// The device is busy before a handler uses its arguments, and before its result is ready.
at::Tensor scale(const at::Tensor& x, double by) {
  delay(x.device());
  const at::Tensor y = x * by;
  delay(x.device());
  return y;
}
GRADWIRE_RPC(scale)

at::Tensor echo(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo)

at::Tensor increased(at::Tensor x) { return x.add_(1); }
GRADWIRE_RPC(increased)

std::string device_of(const at::Tensor& x) { return x.device().str(); }
GRADWIRE_RPC(device_of)

std::map<std::string, std::vector<at::Tensor>> doubled(
    const std::map<std::string, std::vector<at::Tensor>>& in) {
  std::map<std::string, std::vector<at::Tensor>> out;
  for (const auto& [name, tensors] : in) {
    for (const at::Tensor& tensor : tensors) {
      delay(tensor.device());
      out[name].push_back(tensor * 2);
    }
  }
  return out;
}
GRADWIRE_RPC(doubled)

Future<at::Tensor> later(at::Tensor x) {
  // Another call to this worker, so that the result is made on other streams.
  Future<at::Tensor> inner = rpc_async<&scale>(Agent::current()->get_worker_info(), x, 3.0);
  at::Tensor y = co_await inner;
  co_return y + 1;
}
GRADWIRE_RPC(later)

// An object whose state is on a device.
struct Sums {
  explicit Sums(int64_t n) : sum(at::zeros({n}, at::TensorOptions().device(device(0)))) {}
  void add(const at::Tensor& x) {
    delay(x.device());
    sum += x;
  }
  at::Tensor get() const { return sum; }
  at::Tensor sum;
};
GRADWIRE_RPC_SERIAL_CLASS(Sums, int64_t)
GRADWIRE_RPC_METHOD(Sums, add)
GRADWIRE_RPC_METHOD(Sums, get)

void add_to(const RRef<Sums>& sums, const at::Tensor& x) { sums.local_value().add(x); }
GRADWIRE_RPC(add_to)
at::Tensor fetch(const RRef<at::Tensor>& value) { return value.to_here(); }
GRADWIRE_RPC(fetch)

// The argument: the channel.
class DeviceCalls : public ::testing::TestWithParam<const char*> {
 protected:
  DeviceCalls() {
    device_kind::begin(1);
    if (std::string(GetParam()) == "ipc") ipc_ = device_kind::expect_ipc(group_);
  }
  ~DeviceCalls() override { group_.expect_empty(); }
  NothingLeft after_the_group_;
  testing::Group group_{3, with_channels({GetParam()})};
  // Checks that the calls of a test have used the channel "ipc".
  std::shared_ptr<void> ipc_;
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceCalls, ::testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceCalls, TensorsTravelBothWays) {
  const at::Tensor large = at::rand({300, 400});
  const at::Tensor small = at::rand({3});
  for (const at::Tensor& x : {large, small, at::zeros({0, 2}), large.t().slice(0, 10, 50, 3), small > 0.5}) {
    const at::Tensor y = group_[0]->rpc_sync<&echo>("worker1", on(1, x));
    EXPECT_EQ(y.device(), device(1));
    expect_equal(y, x);
    expect_equal(group_[0]->rpc_sync<&echo>("worker0", on(0, x)), x);
  }
  expect_equal(group_[0]->rpc_sync<&scale>("worker1", on(0, large), 2.0), large * 2.0);
  // More than one piece of a copy to the device, not in row-major order.
  const at::Tensor huge = at::rand({1500, 1001}).t();
  expect_equal(group_[0]->rpc_sync<&echo>("worker1", on(0, huge)), huge);
  expect_equal(group_[0]->rpc_sync<&echo>("worker1", on(0, huge.to(at::kBFloat16))), huge.to(at::kBFloat16));
}

TEST_P(DeviceCalls, ATensorWhoseElementsShareMemoryIsNotHandedOver) {
  at::Tensor x = on(0, at::full({1}, 3.0));
  // As expand() does, but without the handle to the original that it keeps.
  x.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef{5}, at::IntArrayRef{0});
  // The receiver changes what it got, which libtorch refuses if elements share memory.
  expect_equal(group_[0]->rpc_sync<&increased>("worker1", std::move(x)), at::full({5}, 4.0));
}

TEST_P(DeviceCalls, NoThreadWaitsForAStream) {
  const at::Tensor x = at::rand({1000});
  const c10::Stream stream = device_kind::new_stream(0);
  const c10::StreamGuard guard(stream);
  const at::Tensor there = on(0, x);
  // Make the connection.
  (void)group_[0]->rpc_sync<&device_of>("worker1", there);
  const uint64_t waits = device_kind::host_waits();
  Future<at::Tensor> result;
  {
    const Hold busy(stream);
    at::Tensor y = there * 3;
    result = group_[0]->rpc_async<&scale>("worker1", y, 2.0);
    // The callee gets what the tensor was at the call.
    y.zero_();
  }
  const at::Tensor got = result.wait() + 1;
  EXPECT_EQ(device_kind::host_waits(), waits);
  expect_equal(got, x * 3 * 2.0 + 1);
}

TEST_P(DeviceCalls, TensorsAreMixedAtAnyDepth) {
  const at::Tensor a = at::rand({50}), b = at::rand({700}), c = at::rand({2, 2});
  const auto got = group_[0]->rpc_sync<&doubled>(
      "worker1", std::map<std::string, std::vector<at::Tensor>>{{"x", {a, on(0, b)}}, {"y", {on(1, c)}}});
  EXPECT_TRUE(got.at("x")[0].device().is_cpu());
  EXPECT_EQ(got.at("x")[1].device(), device(0));
  EXPECT_EQ(got.at("y")[0].device(), device(1));
  expect_equal(got.at("x")[0], a * 2);
  expect_equal(got.at("x")[1], b * 2);
  expect_equal(got.at("y")[0], c * 2);
}

TEST_P(DeviceCalls, CoroutinesKeepTheirStreams) {
  const at::Tensor x = at::rand({2000});
  for (int i = 0; i < 20; ++i) expect_equal(group_[0]->rpc_sync<&later>("worker1", on(0, x)), x * 3.0 + 1);
}

TEST_P(DeviceCalls, UsesOfAnObjectFollowEachOther) {
  const RRef<Sums> sums = group_[0]->remote<Sums>("worker1", 500);
  at::Tensor expected = at::zeros({500});
  std::vector<Future<void>> added;
  for (int i = 0; i < 30; ++i) {
    // Small integers, so that the order of the additions does not matter.
    const at::Tensor x = at::randint(0, 100, {500}).to(at::kFloat);
    added.push_back(sums.rpc_async<&Sums::add>(on(0, x)));
    expected += x;
  }
  collect(std::move(added)).wait();
  // The same through local_value() in a handler.
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = at::randint(0, 100, {500}).to(at::kFloat);
    group_[0]->rpc_sync<&add_to>("worker1", sums, on(0, x));
    expected += x;
  }
  expect_equal(sums.rpc_sync<&Sums::get>(), expected);
}

TEST_P(DeviceCalls, ReferencesCarryTheOrder) {
  const at::Tensor x = at::rand({3000});
  const RRef<at::Tensor> scaled = group_[0]->remote<&scale>("worker1", on(0, x), 2.0);
  expect_equal(scaled.to_here(), x * 2.0);
  expect_equal(group_[0]->rpc_sync<&fetch>("worker1", scaled), x * 2.0);
  expect_equal(group_[0]->rpc_sync<&fetch>("worker2", scaled), x * 2.0);
  expect_equal(scaled.rpc_sync<at::Tensor>(Op("aten::add"), 1), x * 2.0 + 1);
  AgentGuard guard(group_[1]);
  const RRef<at::Tensor> own(on(0, x) * 5);
  expect_equal(group_[1]->rpc_sync<&fetch>("worker0", own), x * 5);
  expect_equal(own.to_here(), x * 5);
}

TEST_P(DeviceCalls, OrderedCallsDoNotOvertake) {
  const RRef<Sums> sums = group_[0]->remote<Sums>("worker1", 10);
  for (int round = 0; round < 10; ++round) {
    const c10::Stream stream = device_kind::new_stream(0);
    const c10::StreamGuard guard(stream);
    std::vector<Future<std::string>> done;
    {
      const Hold busy(stream);
      done.push_back(
          group_[0]->rpc_async<&device_of>(Destination("worker1").ordered(), on(0, at::ones({10}))));
      done.push_back(group_[0]->rpc_async<&device_of>(Destination("worker1").ordered(), at::ones({10})));
    }
    const std::vector<std::string> devices = collect(std::move(done)).wait();
    EXPECT_EQ(devices, (std::vector<std::string>{device(0).str(), "cpu"}));
  }
}

TEST_P(DeviceCalls, ACallEndsAtItsDeadlineWhileTheDeviceIsBusy) {
  const c10::Stream stream = device_kind::new_stream(0);
  const c10::StreamGuard guard(stream);
  const at::Tensor x = on(0, at::rand({1000}));
  const Hold busy(stream);
  // By the channels "local" and "ipc" the call ends while the device is busy, but its result is not computed.
  const bool through_the_host = std::string(GetParam()) != "local" && ipc_ == nullptr;
  const absl::Duration timeout = through_the_host ? absl::Milliseconds(50) : absl::Seconds(60);
  const Future<at::Tensor> result =
      group_[0]->rpc_async<&echo>(Destination("worker1").with_timeout(timeout), x * 2);
  EXPECT_EQ(result.result().status().code(),
            through_the_host ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk);
}

}  // namespace
}  // namespace gradwire::rpc
