// Every operation, for every dtype that it has a meaning for, against a reference that is computed on one tensor.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/collectives/worlds.h"

namespace gradwire::collectives {
namespace {

const c10::ScalarType kTypes[] = {at::kByte,   at::kChar, at::kShort,        at::kInt,
                                  at::kLong,   at::kHalf, at::kBFloat16,     at::kFloat,
                                  at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble};
const ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin,  ReduceOp::kMax,
                         ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor, ReduceOp::kAvg};
const std::vector<int64_t> kShapes[] = {{}, {0}, {1}, {5}, {3, 4}, {2, 0, 3}, {7, 129}};

const World kWorlds[] = {{"shared memory", "cpu", {}}, {"messages", "cpu", {{"shared_memory", "off"}}}};

// What rank `rank` brings: small whole numbers, so that every sum is exact in every type.
at::Tensor brought(int rank, const std::vector<int64_t>& shape, c10::ScalarType type, int salt = 0) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor numbers = (at::arange(count, at::kLong) * (rank + 3) + rank + salt).remainder(4);
  if (type == at::kBool) return numbers.remainder(2).to(at::kBool).reshape(shape);
  return numbers.to(type).reshape(shape);
}

at::Tensor combined(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kProduct:
      return at::mul(a, b);
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kBand:
      return at::bitwise_and(a, b);
    case ReduceOp::kBor:
      return at::bitwise_or(a, b);
    case ReduceOp::kBxor:
      return at::bitwise_xor(a, b);
    default:
      return at::add(a, b);
  }
}

at::Tensor reduced(ReduceOp op, const std::vector<at::Tensor>& tensors) {
  at::Tensor result = tensors[0].clone();
  for (std::size_t i = 1; i < tensors.size(); ++i) result = combined(op, result, tensors[i]);
  return op == ReduceOp::kAvg ? result.div(static_cast<double>(tensors.size())) : result;
}

bool has_meaning(ReduceOp op, c10::ScalarType type) {
  const bool floating = c10::isFloatingType(type), complex = c10::isComplexType(type);
  switch (op) {
    case ReduceOp::kSum:
      return true;
    case ReduceOp::kAvg:
      return floating || complex;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !complex;
    default:
      return !floating && !complex;
  }
}

void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  EXPECT_TRUE(at::equal(got, wanted)) << what << "\ngot " << got << "\nwanted " << wanted;
}

class Conformance : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  const World& world() const { return kWorlds[std::get<1>(GetParam())]; }
};

TEST_P(Conformance, Reductions) {
  in_world(size(), world(), [&](ProcessGroup& group) {
    for (const c10::ScalarType type : kTypes) {
      for (const ReduceOp op : kOps) {
        for (const auto& shape : kShapes) {
          const std::string what =
              absl::StrCat(to_string(op), " of ", c10::toString(type), " ", c10::str(shape));
          const at::Tensor mine = brought(group.rank(), shape, type);
          if (!has_meaning(op, type)) {
            at::Tensor untouched = mine.clone();
            EXPECT_THROW(group.all_reduce(untouched, op), Error) << what;
            expect_equal(untouched, mine, what);
            continue;
          }
          std::vector<at::Tensor> all;
          for (int rank = 0; rank < size(); ++rank) all.push_back(brought(rank, shape, type));
          const at::Tensor wanted = reduced(op, all);
          at::Tensor tensor = mine.clone();
          group.all_reduce(tensor, op);
          expect_equal(tensor, wanted, "all_reduce " + what);
          const int root = static_cast<int>(shape.size()) % size();
          tensor = mine.clone();
          group.reduce(tensor, root, op);
          expect_equal(tensor, group.rank() == root ? wanted : mine, "reduce " + what);

          std::vector<at::Tensor> inputs, theirs;
          for (int rank = 0; rank < size(); ++rank) {
            inputs.push_back(brought(group.rank(), shape, type, rank));
            theirs.push_back(brought(rank, shape, type, group.rank()));
          }
          tensor = at::zeros(shape, type);
          group.reduce_scatter(tensor, inputs, op);
          expect_equal(tensor, reduced(op, theirs), "reduce_scatter " + what);
          if (shape.empty()) continue;
          tensor = at::zeros(shape, type);
          group.reduce_scatter_tensor(tensor, at::cat(inputs), op);
          expect_equal(tensor, reduced(op, theirs), "reduce_scatter_tensor " + what);
        }
      }
    }
  });
}

TEST_P(Conformance, Copies) {
  in_world(size(), world(), [&](ProcessGroup& group) {
    const int mine = group.rank();
    for (const c10::ScalarType type : kTypes) {
      for (const auto& shape : kShapes) {
        const std::string what = absl::StrCat(c10::toString(type), " ", c10::str(shape));
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < size(); ++rank) all.push_back(brought(rank, shape, type));
        const auto empty_list = [&] {
          std::vector<at::Tensor> list;
          for (int rank = 0; rank < size(); ++rank) list.push_back(at::zeros(shape, type));
          return list;
        };
        for (int root = 0; root < size(); ++root) {
          at::Tensor tensor = all[mine].clone();
          group.broadcast(tensor, root);
          expect_equal(tensor, all[root], "broadcast " + what);
          std::vector<at::Tensor> list;
          if (mine == root) list = empty_list();
          group.gather(all[mine], list, root);
          for (std::size_t i = 0; i < list.size(); ++i) expect_equal(list[i], all[i], "gather " + what);
          if (mine == root) list = all;
          tensor = at::zeros(shape, type);
          group.scatter(tensor, list, root);
          expect_equal(tensor, all[mine], "scatter " + what);
        }
        std::vector<at::Tensor> list = empty_list();
        group.all_gather(list, all[mine]);
        for (int i = 0; i < size(); ++i) expect_equal(list[i], all[i], "all_gather " + what);
        std::vector<at::Tensor> inputs;
        for (int rank = 0; rank < size(); ++rank) inputs.push_back(brought(mine, shape, type, rank));
        list = empty_list();
        group.all_to_all(list, inputs);
        for (int i = 0; i < size(); ++i)
          expect_equal(list[i], brought(i, shape, type, mine), "all_to_all " + what);
        if (shape.empty()) continue;
        at::Tensor flat = at::cat(empty_list());
        group.all_gather_into_tensor(flat, all[mine]);
        expect_equal(flat, at::cat(all), "all_gather_into_tensor " + what);
        group.all_to_all_single(flat, at::cat(inputs));
        expect_equal(flat.slice(0, 0, shape[0]), brought(0, shape, type, mine), "all_to_all_single " + what);
      }
    }
  });
}

TEST_P(Conformance, StridedTensorsAndLongOnes) {
  in_world(size(), world(), [&](ProcessGroup& group) {
    const int mine = group.rank();
    const at::Tensor base = at::zeros({6, 10}, at::kDouble);
    const at::Tensor strided = base.t().slice(0, 0, 10, 2);
    strided.copy_(at::arange(30, at::kDouble).reshape({5, 6}) * (mine + 1));
    group.all_reduce(strided);
    const double factor = size() * (size() + 1) / 2.0;
    expect_equal(strided, at::arange(30, at::kDouble).reshape({5, 6}) * factor, "strided");
    EXPECT_EQ(base.slice(1, 1, 10, 2).abs().sum().item<double>(), 0)
        << "what lies between is not the operation's";
    // More than any buffer holds at once, and no multiple of anything.
    const int64_t count = (int64_t{5} << 20) / 8 + 3;
    at::Tensor longs = at::arange(count, at::kLong) + mine;
    group.all_reduce(longs);
    expect_equal(longs, at::arange(count, at::kLong) * size() + size() * (size() - 1) / 2, "long all_reduce");
    at::Tensor data = at::arange(count, at::kLong) + mine;
    group.broadcast(data, size() - 1);
    expect_equal(data, at::arange(count, at::kLong) + size() - 1, "long broadcast");
    at::Tensor output = at::empty({size() * count}, at::kLong);
    group.all_gather_into_tensor(output, at::arange(count, at::kLong) + mine);
    for (int rank = 0; rank < size(); ++rank) {
      expect_equal(output.slice(0, rank * count, (rank + 1) * count), at::arange(count, at::kLong) + rank,
                   "long gather");
    }
  });
}

TEST_P(Conformance, GroupsAsynchronousAndPointToPoint) {
  in_world(size(), world(), [&](ProcessGroup& group) {
    const int mine = group.rank();
    std::vector<int> even, others;
    for (int rank = 0; rank < size(); ++rank) (rank % 2 == 0 ? even : others).push_back(rank);
    const auto evens = group.new_group(even);
    const auto odds = others.empty() ? nullptr : group.new_group(others);
    // Operations of several groups interleave as they like.
    std::vector<std::pair<std::shared_ptr<Work>, at::Tensor>> works;
    for (int i = 0; i < 20; ++i) {
      at::Tensor here = at::full({100}, mine + i, at::kLong), there = at::full({3}, mine - i, at::kLong);
      works.emplace_back(group.all_reduce_async(here), here);
      ProcessGroup& part = mine % 2 == 0 ? *evens : *odds;
      works.emplace_back(part.all_reduce_async(there), there);
    }
    int64_t sum_of_mine = 0;
    const std::vector<int>& mates = mine % 2 == 0 ? even : others;
    for (const int rank : mates) sum_of_mine += rank;
    for (int i = 0; i < 20; ++i) {
      works[2 * i].first->wait();
      works[2 * i + 1].first->wait();
      EXPECT_EQ(works[2 * i].second[50].item<int64_t>(), size() * (size() - 1) / 2 + size() * i);
      EXPECT_EQ(works[2 * i + 1].second[2].item<int64_t>(),
                sum_of_mine - static_cast<int64_t>(mates.size()) * i);
    }
    const int next = (mine + 1) % size(), before = (mine + size() - 1) % size();
    for (const int64_t count : {int64_t{1}, int64_t{100000}}) {
      const at::Tensor out = at::full({count}, mine, at::kLong);
      at::Tensor in = at::empty({count}, at::kLong);
      const auto sent = group.isend(out, next, 7);
      EXPECT_EQ(group.recv(in, count == 1 ? before : kAnySource, 7), before);
      sent->wait();
      expect_equal(in, at::full({count}, before, at::kLong), "point to point");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Conformance,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8), testing::Range(0, 2)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "Ranks",
                                               std::get<1>(info.param) == 0 ? "SharedMemory" : "Messages");
                         });

}  // namespace
}  // namespace gradwire::collectives
