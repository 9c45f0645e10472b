// Tests every operation, synchronous and asynchronous, on 1 to 4 ranks.
#include "gradwire/collectives/process_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using testing::Ranks;
using Tensors = std::vector<at::Tensor>;

[[maybe_unused]] const bool groups_use_local_backend = (testing::use_local_backend(), true);

// The input of rank `rank`.
at::Tensor mine(int rank, at::IntArrayRef sizes = {2, 3}) { return at::full(sizes, rank + 1.0, at::kFloat); }
at::Tensor blank(at::IntArrayRef sizes = {2, 3}) { return at::full(sizes, -1.0, at::kFloat); }
Tensors blanks(int count) {
  Tensors list;
  for (int i = 0; i < count; ++i) list.push_back(blank());
  return list;
}

class EveryOperation : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float total() const { return static_cast<float>(size() * (size() + 1)) / 2; }
};

TEST_P(EveryOperation, Synchronous) {
  Ranks ranks(size());
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    const int last = size() - 1;
    EXPECT_EQ(group->size(), size());

    at::Tensor tensor = mine(rank);
    group->broadcast(tensor, last);
    EXPECT_TRUE(tensor.equal(mine(last)));

    tensor = mine(rank);
    group->reduce(tensor, last);
    EXPECT_TRUE(tensor.equal(rank == last ? at::full({2, 3}, total()) : mine(rank)));

    tensor = mine(rank);
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(at::full({2, 3}, total())));

    Tensors list = rank == last ? blanks(size()) : Tensors();
    group->gather(mine(rank), list, last);
    for (std::size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(list[i].equal(mine(static_cast<int>(i))));

    list = blanks(size());
    group->all_gather(list, mine(rank));
    for (std::size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(list[i].equal(mine(static_cast<int>(i))));

    list.clear();
    for (int i = 0; rank == last && i < size(); ++i) list.push_back(mine(i));
    tensor = blank();
    group->scatter(tensor, list, last);
    EXPECT_TRUE(tensor.equal(mine(rank)));

    list.clear();
    for (int i = 0; i < size(); ++i) list.push_back(mine(rank) * (i + 1));
    tensor = blank();
    group->reduce_scatter(tensor, list);
    EXPECT_TRUE(tensor.equal(at::full({2, 3}, total() * (rank + 1))));

    group->barrier();
    group->monitored_barrier();
  });
}

TEST_P(EveryOperation, AllToAllWithDifferentShapes) {
  Ranks ranks(size());
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    Tensors inputs;
    Tensors outputs;
    for (int other = 0; other < size(); ++other) {
      // Rank i sends i * j elements of value 10 i + j to rank j.
      inputs.push_back(at::full({rank * other}, 10.0 * rank + other));
      outputs.push_back(blank({other * rank}));
    }
    group->all_to_all(outputs, inputs);
    for (int other = 0; other < size(); ++other) {
      EXPECT_TRUE(outputs[other].equal(at::full({other * rank}, 10.0 * other + rank)));
    }
  });
}

TEST_P(EveryOperation, OneTensorForAllRanks) {
  Ranks ranks(size());
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    Tensors expected;
    for (int i = 0; i < size(); ++i) expected.push_back(mine(i));
    at::Tensor output = blank({2 * size(), 3});
    group->all_gather_into_tensor(output, mine(rank));
    EXPECT_TRUE(output.equal(at::cat(expected)));
    output = blank({size(), 2, 3});
    group->all_gather_into_tensor(output, mine(rank));
    EXPECT_TRUE(output.equal(at::stack(expected)));

    Tensors parts;
    for (int i = 0; i < size(); ++i) parts.push_back(mine(rank) * (i + 1));
    output = blank();
    group->reduce_scatter_tensor(output, at::cat(parts));
    EXPECT_TRUE(output.equal(at::full({2, 3}, total() * (rank + 1))));

    // First with equal parts, then with i + j rows from rank i to rank j.
    at::Tensor input = at::arange(size(), at::kFloat) + 100 * rank;
    output = blank({size()});
    group->all_to_all_single(output, input);
    EXPECT_TRUE(output.equal(at::arange(size(), at::kFloat) * 100 + rank));
    std::vector<int64_t> splits;
    for (int other = 0; other < size(); ++other) splits.push_back(rank + other);
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    output = blank({rows, 2});
    group->all_to_all_single(output, mine(rank, {rows, 2}), splits, splits);
    Tensors received;
    for (int other = 0; other < size(); ++other) received.push_back(mine(other, {rank + other, 2}));
    EXPECT_TRUE(output.equal(at::cat(received)));
  });
}

TEST_P(EveryOperation, Asynchronous) {
  Ranks ranks(size());
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    std::vector<std::shared_ptr<Work>> works;
    const at::Tensor broadcast = mine(rank);
    works.push_back(group->broadcast_async(broadcast, 0));
    const at::Tensor reduced = mine(rank);
    works.push_back(group->reduce_async(reduced, 0));
    const at::Tensor all_reduced = mine(rank);
    works.push_back(group->all_reduce_async(all_reduced));
    const Tensors gathered = rank == 0 ? blanks(size()) : Tensors();
    works.push_back(group->gather_async(mine(rank), gathered));
    const Tensors all_gathered = blanks(size());
    works.push_back(group->all_gather_async(all_gathered, mine(rank)));
    Tensors list;
    for (int i = 0; i < size(); ++i) list.push_back(mine(i));
    const at::Tensor scattered = blank();
    works.push_back(group->scatter_async(scattered, rank == 0 ? list : Tensors()));
    const at::Tensor reduce_scattered = blank();
    works.push_back(group->reduce_scatter_async(reduce_scattered, list));
    const Tensors exchanged = blanks(size());
    works.push_back(group->all_to_all_async(exchanged, list));
    works.push_back(group->barrier_async());
    const at::Tensor whole = blank({2 * size(), 3});
    works.push_back(group->all_gather_into_tensor_async(whole, mine(rank)));
    const at::Tensor part = blank();
    works.push_back(group->reduce_scatter_tensor_async(part, at::cat(list)));
    const at::Tensor single = blank({2 * size(), 3});
    works.push_back(group->all_to_all_single_async(single, at::cat(list)));
    for (const std::shared_ptr<Work>& work : works) {
      EXPECT_TRUE(work->wait_for(absl::Seconds(60)));
      EXPECT_TRUE(work->is_completed());
      EXPECT_TRUE(work->is_success());
      EXPECT_EQ(work->exception(), nullptr);
      EXPECT_THROW(work->source_rank(), Error);
    }
    EXPECT_TRUE(broadcast.equal(mine(0)));
    EXPECT_TRUE(reduced.equal(rank == 0 ? at::full({2, 3}, total()) : mine(rank)));
    EXPECT_TRUE(all_reduced.equal(at::full({2, 3}, total())));
    for (std::size_t i = 0; i < gathered.size(); ++i)
      EXPECT_TRUE(gathered[i].equal(mine(static_cast<int>(i))));
    for (int i = 0; i < size(); ++i) EXPECT_TRUE(all_gathered[i].equal(mine(i)));
    EXPECT_TRUE(scattered.equal(mine(rank)));
    EXPECT_TRUE(reduce_scattered.equal(mine(rank) * size()));
    for (int i = 0; i < size(); ++i) EXPECT_TRUE(exchanged[i].equal(mine(rank)));
    EXPECT_TRUE(whole.equal(at::cat(list)));
    EXPECT_TRUE(part.equal(mine(rank) * size()));
    EXPECT_TRUE(single.equal(mine(rank, {2 * size(), 3})));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, EveryOperation, ::testing::Values(1, 2, 3, 4));

TEST(ProcessGroup, OperationsRunInTheOrderOfTheirCalls) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const at::Tensor tensor = at::full({1}, 1.0);
    std::shared_ptr<Work> work;
    // Each operation doubles the value. The synchronous one waits until the earlier ones have run.
    for (int i = 0; i < 10; ++i) work = group->all_reduce_async(tensor);
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), 2048);
    EXPECT_TRUE(work->wait_for(absl::Seconds(60)));
  });
}

TEST(ProcessGroup, SynchronousCallsOfSeveralThreadsTakeTurns) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    // All threads call the same operation, so the order of the threads may differ between the ranks.
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 50; ++n) {
          const at::Tensor tensor = at::full({4}, 1.0);
          group->all_reduce(tensor);
          if (!tensor.equal(at::full({4}, 2.0))) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
  });
}

TEST(ProcessGroup, AsynchronousOperationOutlivesWorkAndHandle) {
  at::Tensor tensors[2] = {mine(0), mine(1)};
  Future<int> ended;
  {
    auto ranks = std::make_unique<std::vector<Group>>();
    const auto store = std::make_shared<store::HashStore>();
    ranks->resize(2);
    testing::run_threads(2, [&](int rank) {
      (*ranks)[rank] = ProcessGroup::create({.world_size = 2, .rank = rank, .store = store});
    });
    ended = (*ranks)[0]->all_reduce_async(tensors[0])->future();
    (*ranks)[0].reset();
    (*ranks)[1]->all_reduce(tensors[1]);
  }
  EXPECT_TRUE(ended.wait_for(absl::Seconds(60)));
  EXPECT_TRUE(tensors[0].equal(at::full({2, 3}, 3.0)));
}

TEST(ProcessGroup, DescribesItself) {
  Ranks ranks(2, {.backend = "GLOO", .timeout = absl::Seconds(30), .group_name = "job.1"});
  EXPECT_EQ(ranks[1]->rank(), 1);
  EXPECT_EQ(ranks[1]->backend(), Backend::kCpu);
  EXPECT_EQ(ranks[1]->ranks(), std::vector<int>({0, 1}));
  EXPECT_EQ(ranks[1]->name(), "job.1");
  EXPECT_EQ(ranks[1]->timeout(), absl::Seconds(30));
  ranks.run([](const Group& group) { group->all_reduce(mine(group->rank())); });
  EXPECT_THAT(ranks[0]->flight_record(), ::testing::HasSubstr("#0 all_reduce Float[2, 3] sum: done"));
}

}  // namespace
}  // namespace gradwire::collectives
