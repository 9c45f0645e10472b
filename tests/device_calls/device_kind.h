#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>

namespace gradwire::rpc::testing {
class Group;
}  // namespace gradwire::rpc::testing

// The kind of accelerator on which the tests of this folder run. A program links one implementation:
// :lag_kind, the test accelerator, or //tests/gpu:cuda_kind.
namespace gradwire::device_kind {

c10::DeviceType type();
// The devices 0 to 2. A machine may have fewer; then several of the three are the same device.
c10::Device device(int index);
// A stream that no other one of the test shares, if there are enough.
c10::Stream new_stream(int index);

// Makes the order of work on the devices differ from run to run. Call once for each test or program.
void begin(uint64_t seed);
// Appends work to the current stream of `device` that takes a random time, at most some milliseconds, like a
// kernel that computes for long.
void delay(c10::Device device);

// How often a thread of this process has waited for a stream. Always 0 if the kind does not count it.
uint64_t host_waits();
// In words what is still in use on the devices; empty if there is nothing. Waits up to ten seconds.
std::string leftovers();

// Has tensors travel by the channel "ipc" between all agents of the group from now on. The test fails when
// the result is destroyed, if fewer than `at_least` have done so. nullptr if agents of one process cannot
// share memory of this kind of device; then their tensors travel by "host".
std::shared_ptr<void> expect_ipc(const rpc::testing::Group& group, int64_t at_least = 1);

// Stops a stream until it is released or destroyed. The test fails if the stream did not stop for that long.
class Hold {
 public:
  explicit Hold(const c10::Stream& stream);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A copy on device `index`.
inline at::Tensor on(int index, const at::Tensor& x) { return x.to(device(index), /*non_blocking=*/true); }

}  // namespace gradwire::device_kind
