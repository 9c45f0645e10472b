// Runs random programs of collectives and messages on several groups at the same time. The ranks are
// processes.
#include "gradwire/tests/collectives/interleaving.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/tests/collectives/inputs.h"
#include "gradwire/tests/collectives/rank_processes.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

using Kind = Interleaving::Kind;
using testing::reduce_reference;
using Tensors = std::vector<at::Tensor>;

// The input of a rank of the world in a step, for the member `part` of the group.
at::Tensor value(int world_rank, std::size_t number, int64_t count, std::size_t part = 0) {
  return at::arange(count, at::kLong) * 31 + world_rank * 1009 + static_cast<int64_t>(number * 7 + part * 3);
}

// One rank's part in a program.
class Member {
 public:
  Member(ProcessGroup& world, const Interleaving& program)
      : program_(program), self_(world.rank()), random_(program.seed + static_cast<uint64_t>(self_)) {
    groups_.push_back(world.shared_from_this());
  }

  void run() {
    for (std::size_t round = 0; round < program_.rounds.size(); ++round) {
      while (groups_.size() < program_.rounds[round].groups) {
        groups_.push_back(groups_[0]->new_group(program_.groups[groups_.size()]));
      }
      for (const std::size_t step : program_.order(round, self_)) {
        const bool now = program_.waits(round, step, self_);
        begin(program_.rounds[round].steps[step], round * 1000 + step, now,
              absl::StrCat("round ", round, ", step ", step));
        if (now) end(pending_.size() - 1);
      }
      std::shuffle(pending_.begin(), pending_.end(), random_);
      while (!pending_.empty()) end(pending_.size() - 1);
    }
  }

 private:
  struct Pending {
    // nullptr if the step was synchronous.
    std::shared_ptr<Work> work;
    std::string name;
    Tensors got, wanted;
    // The expected sender of a received message; -1 for other steps.
    int source = -1;
  };

  void begin(const Interleaving::Step& step, std::size_t number, bool now, std::string name) {
    ProcessGroup& group = *groups_[step.group];
    const std::vector<int>& ranks = group.ranks();
    const at::Tensor mine = value(self_, number, step.count);
    Tensors all, outputs, inputs, exchanged;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      all.push_back(value(ranks[i], number, step.count));
      outputs.push_back(at::zeros({step.count}, at::kLong));
      inputs.push_back(value(self_, number, step.count, i));
      exchanged.push_back(value(ranks[i], number, step.count, std::max(group.rank(), 0)));
    }
    const ReduceOp op = number % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    Pending pending{.name = std::move(name), .got = {mine}};
    switch (step.kind) {
      case Kind::kAllReduce:
        pending.work = now ? (group.all_reduce(mine, op), nullptr) : group.all_reduce_async(mine, op);
        pending.wanted = {reduce_reference(all, op)};
        break;
      case Kind::kReduce:
        pending.work =
            now ? (group.reduce(mine, step.root, op), nullptr) : group.reduce_async(mine, step.root, op);
        pending.wanted = {self_ == step.root ? reduce_reference(all, op) : mine.clone()};
        break;
      case Kind::kBroadcast:
        pending.work =
            now ? (group.broadcast(mine, step.root), nullptr) : group.broadcast_async(mine, step.root);
        pending.wanted = {value(step.root, number, step.count)};
        break;
      case Kind::kAllGather:
        pending.work =
            now ? (group.all_gather(outputs, mine), nullptr) : group.all_gather_async(outputs, mine);
        pending.got = outputs;
        pending.wanted = all;
        break;
      case Kind::kReduceScatter:
        pending.work = now ? (group.reduce_scatter(outputs[0], inputs, op), nullptr)
                           : group.reduce_scatter_async(outputs[0], inputs, op);
        pending.got = {outputs[0]};
        pending.wanted = {reduce_reference(exchanged, op)};
        break;
      case Kind::kAllToAll:
        pending.work =
            now ? (group.all_to_all(outputs, inputs), nullptr) : group.all_to_all_async(outputs, inputs);
        pending.got = outputs;
        pending.wanted = exchanged;
        break;
      case Kind::kBarrier:
        pending.work = now ? (group.barrier(), nullptr) : group.barrier_async();
        pending.got = {};
        break;
      case Kind::kMessage:
        if (self_ == step.root) {
          pending.work = now ? (group.send(mine, step.receiver, step.tag), nullptr)
                             : group.isend(mine, step.receiver, step.tag);
          pending.wanted = {mine.clone()};
        } else {
          const int source = step.from_any ? kAnySource : step.root;
          if (now) {
            expect(group.recv(outputs[0], source, step.tag) == step.root, pending.name + ": wrong source");
          } else {
            pending.work = group.irecv(outputs[0], source, step.tag);
          }
          pending.got = {outputs[0]};
          pending.wanted = {value(step.root, number, step.count)};
          pending.source = step.root;
        }
        break;
    }
    pending_.push_back(std::move(pending));
  }

  void end(std::size_t which) {
    const Pending ended = std::move(pending_[which]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    if (ended.work != nullptr) ended.work->wait();
    if (ended.work != nullptr && ended.source >= 0)
      expect(ended.work->source_rank() == ended.source, ended.name + ": wrong source");
    for (std::size_t i = 0; i < ended.wanted.size(); ++i)
      expect_equal(ended.got[i], ended.wanted[i], ended.name);
  }

  const Interleaving& program_;
  const int self_;
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::vector<Pending> pending_;
};

class Interleavings : public ::testing::TestWithParam<std::tuple<World, int>> {};

TEST_P(Interleavings, GiveTheResultsOfASequentialRun) {
  const auto& [world, seed] = GetParam();
  constexpr int kSize = 4;
  const Interleaving program = Interleaving::make(static_cast<uint64_t>(seed), kSize);
  const RankProcesses ranks({.size = kSize, .world = world}, [&](ProcessGroup& group, std::FILE* out) {
    at::set_num_threads(1);
    Member member(group, program);
    member.run();
    std::fprintf(out, "done\n");
    // Wait for the others: no rank may leave while another is in the last operation.
    group.barrier();
  });
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(ranks.line(rank), "done\n") << "rank " << rank << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, Interleavings,
    ::testing::Combine(::testing::Values(World{"SharedMemory", "cpu", {}},
                                         World{"Messages", "cpu", {{"shared_memory", "off"}}}),
                       ::testing::Values(1, 2, 3)),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param).name, "Seed", std::get<1>(info.param));
    });

}  // namespace
}  // namespace gradwire::collectives
