#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/rpc/core/options.h"
#include "gradwire/tests/device_calls/device_kind.h"

namespace gradwire::rpc {

// Compares with a tensor on the CPU, bit for bit.
inline void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(got.cpu(), expected)) << got.cpu() << "\n expected " << expected;
}

inline RpcBackendOptions with_channels(std::vector<std::string> channels) {
  RpcBackendOptions options;
  options.channels = std::move(channels);
  return options;
}

// The destructor checks that nothing is in use on a device.
struct NothingLeft {
  ~NothingLeft() { EXPECT_EQ(device_kind::leftovers(), ""); }
};

}  // namespace gradwire::rpc
