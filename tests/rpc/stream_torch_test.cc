#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "gradwire/autograd/autograd.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

// Large ones travel beside the envelope. The coroutine changes its tensor after each item.
Stream<at::Tensor> powers(const at::Tensor& base, int64_t n) {
  at::Tensor power = at::ones_like(base);
  for (int64_t i = 0; i < n; ++i) {
    co_yield power.clone();
    power.mul_(base);
  }
}
GRADWIRE_RPC(powers)

Stream<std::pair<std::string, std::optional<at::Tensor>>> named() {
  co_yield std::make_pair("none", std::nullopt);
  co_yield std::make_pair("some", at::arange(3));
}
GRADWIRE_RPC(named)

// A tensor of each kind that has no memory of its own, or more than one.
at::Tensor tensor_of(const std::string& kind) {
  const at::Tensor dense = at::arange(6, at::kFloat).reshape({2, 3});
  if (kind == "undefined") return at::Tensor();
  if (kind == "empty") return at::ones({0, 3});
  if (kind == "expanded") return dense.slice(0, 0, 1).expand({2, 3});
  if (kind == "conjugate") return at::complex(dense, dense).conj();
  if (kind == "zero tensor") return at::_efficientzerotensor({2, 3}, dense.options());
  if (kind == "COO") return dense.to_sparse();
  if (kind == "CSR") return dense.to_sparse_csr();
  if (kind == "CSC") return dense.to_sparse_csc();
  if (kind == "quantized") return at::quantize_per_tensor(dense, 0.5, 1, at::kQUInt8);
  return dense;
}

Stream<at::Tensor> tensors_of(const std::string& kind) {
  for (int i = 0; i < 3; ++i) co_yield tensor_of(kind);
}
GRADWIRE_RPC(tensors_of)

class StreamOfKind : public ::testing::TestWithParam<const char*> {};

TEST_P(StreamOfKind, Arrives) {
  testing::Group group(2);
  const at::Tensor expected = tensor_of(GetParam());
  RemoteStream<at::Tensor> stream = group[0]->rpc_stream<&tensors_of>("worker1", GetParam());
  for (int i = 0; i < 3; ++i) {
    const std::optional<at::Tensor> got = stream.next();
    ASSERT_TRUE(got.has_value());
    ASSERT_EQ(got->defined(), expected.defined());
    if (!expected.defined()) continue;
    EXPECT_EQ(got->layout(), expected.layout());
    EXPECT_EQ(got->is_quantized(), expected.is_quantized());
    const auto plain = [](const at::Tensor& tensor) {
      return tensor.is_quantized()             ? tensor.dequantize()
             : tensor.layout() == at::kStrided ? tensor
                                               : tensor.to_dense();
    };
    EXPECT_TRUE(at::equal(plain(*got), plain(expected)));
  }
  EXPECT_FALSE(stream.next().has_value());
  group.expect_empty();
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamOfKind,
                         ::testing::Values("undefined", "empty", "dense", "expanded", "conjugate",
                                           "zero tensor", "COO", "CSR", "quantized"));

TEST(StreamOfTensors, TensorThatCannotBeSentEndsItsStreamWithTheReason) {
  testing::Group group(2);
  RemoteStream<at::Tensor> stream = group[0]->rpc_stream<&tensors_of>("worker1", "CSC");
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be sent; use a strided, COO or CSR tensor"));
  group.expect_empty();
}

TEST(StreamOfTensors, TensorsArriveWithTheirContents) {
  testing::Group group(2);
  for (const int64_t size : {4, 100'000}) {
    const at::Tensor base = at::arange(size, at::kDouble).remainder_(3);
    RemoteStream<at::Tensor> stream = group[0]->rpc_stream<&powers>("worker1", base, 30);
    at::Tensor expected = at::ones_like(base);
    for (int i = 0; i < 30; ++i) {
      std::optional<at::Tensor> got = stream.next();
      ASSERT_TRUE(got.has_value());
      EXPECT_TRUE(at::equal(*got, expected));
      expected.mul_(base);
    }
    EXPECT_FALSE(stream.next().has_value());
  }
  group.expect_empty();
}

TEST(StreamOfTensors, PartsOfItemsMayBeTensors) {
  testing::Group group(2);
  RemoteStream<std::pair<std::string, std::optional<at::Tensor>>> stream =
      group[0]->rpc_stream<&named>("worker1");
  EXPECT_FALSE(stream.next()->second.has_value());
  EXPECT_EQ(stream.next()->second->numel(), 3);
  EXPECT_FALSE(stream.next().has_value());
}

TEST(StreamOfTensors, OpenedInAnAutogradContextFails) {
  testing::Group group(2);
  {
    autograd::Context context(group[0]);
    const at::Tensor base = at::ones({4}).requires_grad_();
    RemoteStream<at::Tensor> stream = group[0]->rpc_stream<&powers>("worker1", base, 2);
    const absl::Status status = status_of([&] { stream.next(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("outside of the context"));
  }
}

TEST(StreamOfTensors, ReadInAnAutogradContextDoesNotBelongToIt) {
  testing::Group group(2);
  RemoteStream<at::Tensor> stream = group[0]->rpc_stream<&powers>("worker1", at::ones({4}), 2);
  autograd::Context context(group[0]);
  EXPECT_FALSE(stream.next()->requires_grad());
  EXPECT_FALSE(stream.next()->requires_grad());
  EXPECT_FALSE(stream.next().has_value());
}

}  // namespace
}  // namespace gradwire::rpc
