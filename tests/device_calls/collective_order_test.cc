// Calls between workers that also take part in an operation of a process group, as NCCL runs it: on each GPU
// a kernel that ends when the kernels of the other ranks run.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "gradwire/device/streams.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/expectations.h"

namespace gradwire::rpc {
namespace {

using device_kind::on;

at::Tensor tripled(const at::Tensor& x) { return x * 3; }
GRADWIRE_RPC(tripled)
void nothing() {}
GRADWIRE_RPC(nothing)

// Worker 1 has enqueued its part, and has made a call after it, so its handlers come after the operation.
// Worker 0 enqueues its own part only after its call to worker 1. If that call waited for the streams of
// worker 1, both would wait until its deadline.
TEST(BesideACollective, ACallReturnsWhileTheCalleesStreamsWaitForTheCaller) {
  device_kind::begin(5);
  const NothingLeft after_the_group;
  testing::Group group(2, with_channels({"local"}));
  const at::Tensor x = at::rand({1000});
  const at::Tensor there = on(0, x);
  const c10::Stream stream = device_kind::new_stream(0);
  std::unique_ptr<device_kind::Hold> part_of_worker_1;
  std::thread([&] {
    const c10::StreamGuard current(stream);
    part_of_worker_1 = std::make_unique<device_kind::Hold>(stream);
    group[1]->rpc_sync<&nothing>("worker0");
  }).join();
  const at::Tensor y =
      group[0]->rpc_sync<&tripled>(Destination("worker1").with_timeout(absl::Seconds(20)), there);
  // The handler's work does come after the operation.
  EXPECT_FALSE(lag::reaches_end_soon(device::current_stream(lag::device(0))));
  part_of_worker_1 = nullptr;
  expect_equal(y, x * 3);
}

}  // namespace
}  // namespace gradwire::rpc
