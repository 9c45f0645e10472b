#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

// The functions that the programs of these tests register.
namespace gradwire::rpc::ipc_test {

at::Tensor echo(const at::Tensor& x);
at::Tensor scale(const at::Tensor& x, double by);
std::string device_of(const at::Tensor& x);
// Keeps the tensor in the callee's process; kept() returns and forgets it.
void keep(const at::Tensor& x);
at::Tensor kept();
// Occupies a thread of the callee until go_on() is called there.
void stay();
void go_on();
// Waits until a thread of this process is in stay().
void wait_for_stay();
// Ends its process as SIGKILL would, after it has received the tensor.
void die(const at::Tensor& x);
// Number of events and allocations of other processes that are open in the callee's process.
int64_t opened();

}  // namespace gradwire::rpc::ipc_test
