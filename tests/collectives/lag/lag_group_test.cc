// Groups with tensors of an accelerator: the choice of the backend by the tensor's device, the order of
// operations with the caller's streams, and the memory that operations use. Rank r uses the device lag:r.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

// Zeros of the shapes of `like`, whose elements are not adjacent in memory.
std::vector<at::Tensor> strided_like(const std::vector<at::Tensor>& like, c10::Device where) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& one : like) {
    std::vector<int64_t> sizes = one.sizes().vec();
    sizes.push_back(2);
    tensors.push_back(at::zeros(sizes, at::TensorOptions().device(where)).select(-1, 1));
  }
  return tensors;
}

// One collective of the tensor `x`, which is on any device and is x(rank) at each rank.
struct Collective {
  std::string name;
  // Begins it. The results are in `into`, which has zeros of the shapes of results().
  std::function<std::shared_ptr<Work>(const Group& group, const at::Tensor& x, std::vector<at::Tensor> into)>
      begin;
  // The results of a rank.
  std::function<std::vector<at::Tensor>(int rank, const std::function<at::Tensor(int)>& x)> results;
};

// The share of rank i in the tensor `x` of some rank: another multiple, and number of elements, for each
// rank.
at::Tensor share_for(int i, const at::Tensor& x, bool shorter = false) {
  return (shorter ? x.slice(0, 0, 5 + i) : x) * (i + 1);
}
std::vector<at::Tensor> shares(const at::Tensor& x, bool shorter = false) {
  std::vector<at::Tensor> list;
  for (int i = 0; i < kSize; ++i) list.push_back(share_for(i, x, shorter));
  return list;
}

std::vector<Collective> collectives_with_root(int root) {
  return {
      {"reduce",
       [root](const Group& group, const at::Tensor& x, std::vector<at::Tensor> into) {
         into[0].copy_(x);
         return group->reduce_async(into[0], root);
       },
       [root](int rank, const auto& x) -> std::vector<at::Tensor> {
         return {rank == root ? x(0) + x(1) + x(2) : x(rank)};
       }},
      {"gather",
       [root](const Group& group, const at::Tensor& x, std::vector<at::Tensor> into) {
         return group->gather_async(x, std::move(into), root);
       },
       [root](int rank, const auto& x) -> std::vector<at::Tensor> {
         if (rank != root) return {};
         return {x(0), x(1), x(2)};
       }},
      {"scatter",
       [root](const Group& group, const at::Tensor& x, std::vector<at::Tensor> into) {
         return group->scatter_async(into[0], group->rank() == root ? shares(x) : std::vector<at::Tensor>(),
                                     root);
       },
       [root](int rank, const auto& x) -> std::vector<at::Tensor> { return {share_for(rank, x(root))}; }},
  };
}

std::vector<Collective> collectives_of_all() {
  return {
      {"reduce_scatter",
       [](const Group& group, const at::Tensor& x, std::vector<at::Tensor> into) {
         return group->reduce_scatter_async(into[0], shares(x));
       },
       [](int rank, const auto& x) -> std::vector<at::Tensor> {
         return {share_for(rank, x(0)) + share_for(rank, x(1)) + share_for(rank, x(2))};
       }},
      {"all_to_all",
       [](const Group& group, const at::Tensor& x, std::vector<at::Tensor> into) {
         return group->all_to_all_async(std::move(into), shares(x, /*shorter=*/true));
       },
       [](int rank, const auto& x) -> std::vector<at::Tensor> {
         return {share_for(rank, x(0), true), share_for(rank, x(1), true), share_for(rank, x(2), true)};
       }},
  };
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

TEST_P(LagGroup, ServesCollectivesWithARootAndExchanges) {
  const Ranks ranks(kSize, options(GetParam()));
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    std::vector<Collective> all = collectives_of_all();
    for (int root = 0; root < kSize; ++root) {
      for (Collective& one : collectives_with_root(root)) all.push_back(std::move(one));
    }
    for (const Collective& one : all) {
      const std::vector<at::Tensor> want = one.results(rank, values);
      for (const c10::Device where : {c10::Device(c10::kCPU), device_of(group)}) {
        const std::vector<at::Tensor> into = strided_like(want, where);
        one.begin(group, values(rank).to(where), into)->wait();
        for (std::size_t i = 0; i < want.size(); ++i)
          expect_equal(into[i], want[i], absl::StrCat(one.name, " on ", where.str(), ", result ", i));
      }
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

// As above, for all other collectives, which are under way together. The zeros in their results are written
// by the held stream too: an operation that did not wait for it would be overwritten.
TEST_P(LagGroup, CollectivesUnderWayTogetherAreOrderedWithTheCallersStream) {
  const Ranks ranks(kSize, options(GetParam()));
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    const c10::Device device = device_of(group);
    std::vector<Collective> all = collectives_with_root(1);
    for (Collective& one : collectives_of_all()) all.push_back(std::move(one));
    at::Tensor x = values(rank).to(device);
    const c10::StreamGuard guard(lag::new_stream(device.index()));
    lag::StreamHold hold(guard.current_stream());
    x.add_(1);
    std::vector<std::vector<at::Tensor>> want, into;
    std::vector<std::shared_ptr<Work>> works;
    for (const Collective& one : all) {
      want.push_back(one.results(rank, [](int of) { return values(of) + 1; }));
      into.push_back({});
      for (const at::Tensor& result : want.back())
        into.back().push_back(at::zeros(result.sizes(), at::TensorOptions().device(device)));
      works.push_back(one.begin(group, x, into.back()));
      if (!staged()) EXPECT_TRUE(works.back()->is_completed()) << one.name << " is enqueued";
    }
    // The caller may change its tensor in the order of its stream, after the end of the operations.
    hold.release();
    for (const std::shared_ptr<Work>& work : works) work->wait();
    x.zero_();
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < want[i].size(); ++j)
        expect_equal(into[i][j].mul(2), want[i][j] * 2, absl::StrCat(all[i].name, ", result ", j));
    }
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
