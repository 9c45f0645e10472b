// Groups with tensors of an accelerator: the choice of the backend by the tensor's device, the order of
// operations with the caller's streams, and the memory that operations use. Rank r uses the device lag:r.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/tests/collectives/lag/lag_backend.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;

constexpr int kSize = 3;

c10::Device device_of(const Group& group) { return lag::device(group->rank()); }
at::Tensor values(int rank) { return at::arange(12, at::kFloat).add(rank * 100).div(8); }

// The sum over the ranks, in the order of the ranks, as the reference backend computes it.
at::Tensor sum_of_all() {
  at::Tensor sum = values(0);
  for (int rank = 1; rank < kSize; ++rank) sum = sum + values(rank);
  return sum;
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const at::Tensor on_host = got.cpu();
  EXPECT_FALSE(lag::is_poison(on_host)) << what;
  EXPECT_TRUE(at::equal(on_host, want)) << what << "\n" << on_host << "\n" << want;
}

// "": the default, which has the test's backend for lag tensors. "cpu": lag tensors go through the host.
class LagGroup : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { use_lag_backend(); }
  void TearDown() override { lag::expect_nothing_left(); }
  static ProcessGroupOptions options(const std::string& backend) {
    return {.backend = backend, .timeout = absl::Seconds(60)};
  }
  static bool staged() { return GetParam() == "cpu"; }
};

TEST_P(LagGroup, ServesTensorsByTheirDevice) {
  const Ranks ranks(kSize, options(GetParam()));
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    const c10::Device device = device_of(group);
    for (const c10::Device where : {c10::Device(c10::kCPU), device}) {
      const std::string what = where.str();
      at::Tensor tensor = values(rank).to(where);
      group->all_reduce(tensor);
      expect_equal(tensor, sum_of_all(), "all_reduce on " + what);
      tensor = values(rank).to(where);
      group->broadcast(tensor, 1);
      expect_equal(tensor, values(1), "broadcast on " + what);
      std::vector<at::Tensor> list;
      for (int i = 0; i < kSize; ++i) list.push_back(at::zeros({12}, tensor.options()));
      group->all_gather(list, values(rank).to(where));
      for (int i = 0; i < kSize; ++i) expect_equal(list[i], values(i), "all_gather on " + what);
      at::Tensor strided = values(rank).to(where).view({3, 4}).t();
      group->all_reduce(strided);
      expect_equal(strided, sum_of_all().view({3, 4}).t(), "all_reduce of a strided tensor on " + what);
      at::Tensor scaled = values(rank).to(where);
      group->all_reduce_async(scaled, premul_sum(2))->wait();
      expect_equal(scaled, sum_of_all() * 2, "premul_sum on " + what);
      at::Tensor nothing = at::empty({0}, tensor.options());
      group->all_reduce(nothing);
    }
    group->barrier();
    at::Tensor on_meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
    try {
      group->all_reduce(on_meta);
      ADD_FAILURE() << "a tensor of a wrong device was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("on meta"));
      EXPECT_THAT(error.what(), HasSubstr(absl::StrCat("cpu (backend cpu) and lag (backend ",
                                                       staged() ? "cpu" : "lag", ")")));
    }
  });
}

// The caller's stream is held by a long kernel. The operation waits for it, so it must not read the tensor
// before.
TEST_P(LagGroup, OperationsAreOrderedWithTheCallersStream) {
  const Ranks ranks(kSize, options(GetParam()));
  ranks.run([](const Group& group) {
    const c10::Device device = device_of(group);
    at::Tensor tensor = values(group->rank()).to(device);
    const c10::StreamGuard guard(lag::new_stream(device.index()));
    lag::StreamHold hold(guard.current_stream());
    tensor.add_(1);
    const std::shared_ptr<Work> work = group->all_reduce_async(tensor);
    if (!staged()) {
      EXPECT_TRUE(work->is_completed()) << "enqueued";
      work->wait();
    }
    hold.release();
    if (staged()) work->wait();
    const at::Tensor after = tensor.mul(2);
    expect_equal(after, (sum_of_all() + kSize) * 2, "work behind wait()");
  });
}

TEST_P(LagGroup, StridedReceiveIsOrderedWithTheStreamThatWaits) {
  const Ranks ranks(2, options(GetParam()));
  ranks.run([](const Group& group) {
    const c10::Device device = device_of(group);
    const int other = 1 - group->rank();
    for (int round = 0; round < 10; ++round) {
      at::Tensor into = at::zeros({12, 2}, at::TensorOptions().device(device)).select(1, 1);
      const at::Tensor sent = values(group->rank() + round).to(device);
      const std::shared_ptr<Work> receive = group->irecv(into, other, round);
      const std::shared_ptr<Work> send = group->isend(sent, other, round);
      const c10::StreamGuard guard(lag::new_stream(device.index()));
      receive->wait();
      send->wait();
      EXPECT_EQ(receive->source_rank(), other);
      expect_equal(into + 0, values(other + round), "received");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, LagGroup, ::testing::Values("", "cpu"),
                         [](const auto& info) { return info.param.empty() ? "own" : "staged"; });

class LagBackend : public LagGroup {};

TEST_F(LagBackend, WaitDoesNotBlockTheHost) {
  const Ranks ranks(kSize, options(""));
  std::vector<at::Tensor> tensors, results(kSize);
  for (int rank = 0; rank < kSize; ++rank) tensors.push_back(values(rank).to(lag::device(rank)));
  const int64_t waits = lag::counts().host_waits;
  {
    // The last rank's stream is busy, so no rank's operation can end on its device.
    const c10::Stream busy = lag::new_stream(kSize - 1);
    const lag::StreamHold hold(busy);
    ranks.run([&](const Group& group) {
      const int rank = group->rank();
      std::optional<c10::StreamGuard> guard;
      if (rank == kSize - 1) guard.emplace(busy);
      group->all_reduce_async(tensors[rank])->wait();
      group->all_reduce(tensors[rank]);
      results[rank] = tensors[rank] + 1;
    });
  }
  EXPECT_EQ(lag::counts().host_waits, waits);
  for (const at::Tensor& result : results) expect_equal(result, sum_of_all() * kSize + 1, "result");
}

TEST_F(LagBackend, MemoryOfADroppedTensorIsKept) {
  const Ranks ranks(kSize, options(""));
  ranks.run([](const Group& group) {
    const c10::Device device = device_of(group);
    const c10::StreamGuard guard(lag::new_stream(device.index()));
    std::vector<at::Tensor> list;
    for (int i = 0; i < kSize; ++i) list.push_back(at::zeros({12}, at::TensorOptions().device(device)));
    std::shared_ptr<Work> work;
    {
      at::Tensor dropped = values(group->rank()).to(device, /*non_blocking=*/true);
      const lag::StreamHold hold(guard.current_stream());
      work = group->all_gather_async(list, dropped);
      dropped.reset();
      // Gets the memory of the dropped tensor, if the allocator gives it away before the operation has run.
      const at::Tensor other = at::full({12}, -1.0, at::TensorOptions().device(device));
    }
    work->wait();
    for (int i = 0; i < kSize; ++i) expect_equal(list[i], values(i), "gathered");
  });
}

}  // namespace
}  // namespace gradwire::collectives
