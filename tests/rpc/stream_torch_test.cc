#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
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
