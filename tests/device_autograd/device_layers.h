#pragma once

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"

// Layers with parameters on the devices of the test accelerator. Each test must include this header only
// once.
namespace gradwire::autograd {

inline c10::Device at_place(const std::string& place) { return c10::Device(place); }

inline at::Tensor moved(const at::Tensor& x, c10::Device device) {
  return x.to(device, /*non_blocking=*/!device.is_cpu());
}

// A leaf on `place` with the values of a tensor on the CPU. The work of its streams has ended.
inline at::Tensor leaf_on(const std::string& place, const at::Tensor& value) {
  at::Tensor leaf = value.detach().clone();
  if (!at_place(place).is_cpu()) leaf = leaf.to(at_place(place));
  return leaf.set_requires_grad(true);
}

// A layer on a device. The input may be on another one.
class Layer {
 public:
  Layer(const std::string& place, const at::Tensor& weight, const at::Tensor& bias)
      : weight_(leaf_on(place, weight)), bias_(leaf_on(place, bias)) {}

  at::Tensor forward(const at::Tensor& x) { return run(moved(x, weight_.device()), weight_, bias_); }
  std::vector<rpc::RRef<at::Tensor>> parameters() {
    return {rpc::RRef<at::Tensor>(weight_), rpc::RRef<at::Tensor>(bias_)};
  }
  // On the CPU.
  std::vector<at::Tensor> values() { return {weight_.detach().cpu(), bias_.detach().cpu()}; }
  // The gradients of a context, on the CPU. Throws NotFound without one.
  std::vector<at::Tensor> gradients(int64_t context) {
    const Gradients all = get_gradients(context);
    EXPECT_EQ(all.at(weight_).device(), weight_.device());
    return {all.at(weight_).detach().cpu(), all.at(bias_).detach().cpu()};
  }

  static at::Tensor run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(x, weight, bias).tanh();
  }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};
GRADWIRE_RPC_CLASS(Layer, std::string, at::Tensor, at::Tensor)
GRADWIRE_RPC_METHOD(Layer, forward)
GRADWIRE_RPC_METHOD(Layer, parameters)
GRADWIRE_RPC_METHOD(Layer, values)
GRADWIRE_RPC_METHOD(Layer, gradients)

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined() || (a.defined() && a.sizes() != b.sizes())) return false;
  if (!a.defined()) return true;
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.dtype() == y.dtype() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}
inline void expect_same(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(same_bits(got, expected)) << what << "\n" << got << "\n expected\n" << expected;
}
inline void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                        const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) expect_same(got[i], expected[i], what);
}

// Whether the current stream of a device does soon what is in it now.
inline bool reaches_end_soon(int device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  return lag::reaches_end_soon(guard.getStream(lag::device(device)));
}

inline rpc::RpcBackendOptions with_channel(const char* channel) {
  rpc::RpcBackendOptions options;
  options.channels = {channel};
  return options;
}

// The destructor checks that nothing is in use on a device. Declare it before the group.
struct NothingLeft {
  NothingLeft() = default;
  NothingLeft(const NothingLeft&) = delete;
  NothingLeft& operator=(const NothingLeft&) = delete;
  ~NothingLeft() { EXPECT_EQ(lag::leftovers(), ""); }
};

}  // namespace gradwire::autograd
