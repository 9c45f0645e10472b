#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/blocked_workers.h"

namespace gradwire::rpc {
namespace {

int64_t elements_of(const at::Tensor& x) { return x.numel(); }
GRADWIRE_RPC(elements_of)

TEST(BlockedDeleter, OfASentTensorDelaysNobody) {
  testing::BlockedWorkers workers;
  workers.expect_nobody_waits([&workers] {
    auto memory = std::make_shared<std::vector<float>>(std::size_t{4} << 20);
    float* const begin = memory->data();
    const auto size = static_cast<int64_t>(memory->size());
    at::Tensor tensor = at::from_blob(
        begin, {size}, [memory = std::move(memory)](void*) { testing::BlockedWorkers::block(); });
    return std::make_shared<Future<int64_t>>(
        workers[1].rpc_async<&elements_of>("worker0", std::move(tensor)));
  });
}

}  // namespace
}  // namespace gradwire::rpc
