// Runs the same calls with the backend cpu and with the Gloo of libtorch, on the same inputs, as threads of
// this process. Where both succeed the results must be the same. Where Gloo refuses a call or gives another
// result, a test says so: docs/collectives.md and docs/coming_from_pytorch.md name these differences.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/tests/collectives/inputs.h"
#include "gradwire/tests/collectives/support.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;
using testing::run_threads;
using Tensors = std::vector<at::Tensor>;
using Dtypes = std::vector<at::ScalarType>;
using Gloo = c10d::ProcessGroupGloo;

constexpr int kRanks = 3;

// PyTorch's flight recorder belongs to the process. The threads of several groups change a table of it
// without a lock, and the process crashes. PyTorch reads the variable when the first group is used; it is set
// before the program has threads.
[[maybe_unused]] const int kFlightRecorderOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// The result of a call on each rank.
struct Outcome {
  std::vector<absl::Status> statuses;
  // By rank: the tensors that the call has written.
  std::vector<Tensors> tensors;

  bool ok() const {
    for (const absl::Status& status : statuses)
      if (!status.ok()) return false;
    return true;
  }
  std::string error() const {
    for (const absl::Status& status : statuses)
      if (!status.ok()) return status.ToString();
    return "";
  }
};

// Runs `body`, which returns the tensors that it has written, on each rank of a group of the backend cpu.
Outcome run_ours(const std::function<Tensors(const Group&, int rank)>& body, int size = kRanks) {
  Outcome outcome{{}, std::vector<Tensors>(static_cast<std::size_t>(size))};
  Ranks ranks(size, {.timeout = absl::Seconds(60)});
  outcome.statuses = ranks.results([&](const Group& group) {
    outcome.tensors[static_cast<std::size_t>(group->rank())] = body(group, group->rank());
  });
  return outcome;
}

// Its destructor waits until all ranks are there.
class Meeting {
 public:
  explicit Meeting(std::barrier<>& ranks) : ranks_(ranks) {}
  ~Meeting() { ranks_.arrive_and_wait(); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

 private:
  std::barrier<>& ranks_;
};

// As run_ours(), with Gloo. Each run has a group of its own: after some errors a group of Gloo's fails in
// every call. A rank whose call is refused at once must not close its connections while another rank is still
// connecting, which libtorch does not survive. So the groups live from the first meeting to the second.
Outcome run_gloo(const std::function<Tensors(Gloo&, int rank)>& body, int size = kRanks) {
  Outcome outcome{{}, std::vector<Tensors>(static_cast<std::size_t>(size))};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> meeting(size);
  outcome.statuses = run_threads(size, [&](int rank) {
    const auto options = Gloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
    const auto group = c10::make_intrusive<Gloo>(store, rank, size, options);
    meeting.arrive_and_wait();
    const Meeting before_the_end(meeting);
    outcome.tensors[static_cast<std::size_t>(rank)] = body(*group, rank);
  });
  return outcome;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.is_sparse() ? a.to_dense() : a.contiguous();
  const at::Tensor right = b.is_sparse() ? b.to_dense() : b.contiguous();
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         (left.nbytes() == 0 ||
          std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

bool same(const Outcome& ours, const Outcome& gloo) {
  for (std::size_t rank = 0; rank < ours.tensors.size(); ++rank) {
    if (ours.tensors[rank].size() != gloo.tensors[rank].size()) return false;
    for (std::size_t i = 0; i < ours.tensors[rank].size(); ++i)
      if (!same_bits(ours.tensors[rank][i], gloo.tensors[rank][i])) return false;
  }
  return true;
}

c10d::ReduceOp::RedOpType of_torch(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBand:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
  }
  return c10d::ReduceOp::UNUSED;
}

void all_reduce(Gloo& group, const at::Tensor& tensor, ReduceOp op) {
  c10d::AllreduceOptions options;
  options.reduceOp = of_torch(op);
  Tensors list = {tensor};
  group.allreduce(list, options)->wait();
}

// A call with both.
struct Pair {
  Outcome ours;
  Outcome gloo;
};

Pair all_reduce_both(const std::function<at::Tensor(int rank)>& make, ReduceOp op, int size = kRanks) {
  const auto ours = [&](const Group& group, int rank) {
    const at::Tensor tensor = make(rank);
    group->all_reduce(tensor, op);
    return Tensors{tensor};
  };
  const auto gloo = [&](Gloo& group, int rank) {
    const at::Tensor tensor = make(rank);
    all_reduce(group, tensor, op);
    return Tensors{tensor};
  };
  return {run_ours(ours, size), run_gloo(gloo, size)};
}

void expect_same(const Pair& pair, const std::string& what) {
  EXPECT_TRUE(pair.ours.ok()) << what << ": " << pair.ours.error();
  EXPECT_TRUE(pair.gloo.ok()) << what << ": " << pair.gloo.error();
  if (pair.ours.ok() && pair.gloo.ok()) EXPECT_TRUE(same(pair.ours, pair.gloo)) << what;
}

// `text`: part of Gloo's error.
void expect_only_gloo_refuses(const Pair& pair, const std::string& text, const std::string& what) {
  EXPECT_TRUE(pair.ours.ok()) << what << ": " << pair.ours.error();
  EXPECT_FALSE(pair.gloo.ok()) << what;
  EXPECT_THAT(pair.gloo.error(), HasSubstr(text)) << what;
}

void expect_both_refuse(const Pair& pair, const std::string& what) {
  EXPECT_THAT(pair.ours.error(), HasSubstr("INVALID_ARGUMENT")) << what;
  EXPECT_FALSE(pair.gloo.ok()) << what;
}

// Complex sums and averages are the same; Gloo has no 16-bit integers, and what has no meaning is refused by
// both. The sum of bools is below.
TEST(GlooComparison, ReductionsOfEveryDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kReduceOps) {
      const std::string what = absl::StrCat(to_string(op), " of ", c10::toString(dtype));
      const Pair pair = all_reduce_both([&](int rank) { return input_of(rank, {7}, dtype); }, op);
      if (!reduces(Backend::kCpu, op, class_of(dtype))) {
        expect_both_refuse(pair, what);
      } else if (dtype == at::kShort) {
        expect_only_gloo_refuses(pair, "Invalid scalar type", what);
      } else if (dtype != at::kBool || op != ReduceOp::kSum) {
        expect_same(pair, what);
      }
    }
  }
}

// Gloo adds the bytes up, so that an element which is true has another value than 1.
TEST(GlooComparison, SumOfBoolsIsOrOnlyHere) {
  const Pair pair = all_reduce_both([](int) { return at::ones({4}, at::kBool); }, ReduceOp::kSum);
  ASSERT_TRUE(pair.ours.ok() && pair.gloo.ok()) << pair.ours.error() << pair.gloo.error();
  const auto bytes = [](const Outcome& outcome) { return outcome.tensors[0][0].view(at::kByte); };
  EXPECT_TRUE(bytes(pair.ours).equal(at::ones({4}, at::kByte))) << bytes(pair.ours);
  EXPECT_TRUE(bytes(pair.gloo).equal(at::full({4}, kRanks, at::kByte))) << bytes(pair.gloo);
}

// Positive values that use all bits of the dtype, different for each rank.
at::Tensor precise(int rank, at::ScalarType dtype) {
  const at::Tensor places = at::arange(1000, at::kDouble);
  return ((places * 0.6180339887 + 0.37 * rank).remainder(1.0) + 0.5).to(dtype);
}

TEST(GlooComparison, GlooRoundsEachPartialSumOfHalfAndBfloat16) {
  constexpr int kMany = 5;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor exact = at::zeros({1000}, at::kDouble);
    for (int rank = 0; rank < kMany; ++rank) exact += precise(rank, dtype);
    const Pair pair = all_reduce_both([&](int rank) { return precise(rank, dtype); }, ReduceOp::kSum, kMany);
    ASSERT_TRUE(pair.ours.ok() && pair.gloo.ok()) << pair.ours.error() << pair.gloo.error();
    const auto largest_error = [&](const Outcome& outcome) {
      return (outcome.tensors[0][0].to(at::kDouble) / exact - 1).abs().max().item<double>();
    };
    const double one_rounding = (dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256) * 1.001;
    EXPECT_LE(largest_error(pair.ours), one_rounding);
    EXPECT_GT(largest_error(pair.gloo), one_rounding);
  }
}

TEST(GlooComparison, AverageOfLargeHalvesOverflowsOnlyInGloo) {
  const Pair pair = all_reduce_both([](int) { return at::full({4}, 40000.0, at::kHalf); }, ReduceOp::kAvg);
  ASSERT_TRUE(pair.ours.ok() && pair.gloo.ok()) << pair.ours.error() << pair.gloo.error();
  EXPECT_TRUE(pair.ours.tensors[0][0].equal(at::full({4}, 40000.0, at::kHalf)));
  EXPECT_TRUE(pair.gloo.tensors[0][0].isinf().all().item<bool>()) << pair.gloo.tensors[0][0];
}

Pair broadcast_both(const std::function<at::Tensor(int rank)>& make) {
  return {run_ours([&](const Group& group, int rank) {
            const at::Tensor tensor = make(rank);
            group->broadcast(tensor, 1);
            return Tensors{tensor};
          }),
          run_gloo([&](Gloo& group, int rank) {
            Tensors list = {make(rank)};
            c10d::BroadcastOptions options;
            options.rootRank = 1;
            group.broadcast(list, options)->wait();
            return list;
          })};
}

// `rows`: the number of rows of each rank's tensor.
Pair all_gather_both(at::ScalarType dtype, const std::function<int64_t(int rank)>& rows) {
  const auto tensor_of = [&](int rank) { return input_of(rank, {rows(rank), 2}, at::kLong).to(dtype); };
  const auto outputs = [&] {
    Tensors list;
    for (int rank = 0; rank < kRanks; ++rank) list.push_back(at::empty({rows(rank), 2}, dtype));
    return list;
  };
  return {run_ours([&](const Group& group, int rank) {
            const Tensors list = outputs();
            group->all_gather(list, tensor_of(rank));
            return list;
          }),
          run_gloo([&](Gloo& group, int rank) {
            const Tensors list = outputs();
            // torch.distributed gives complex tensors to Gloo as real ones.
            const auto seen_by_gloo = [](const at::Tensor& tensor) {
              return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
            };
            std::vector<Tensors> lists(1);
            for (const at::Tensor& tensor : list) lists[0].push_back(seen_by_gloo(tensor));
            Tensors inputs = {seen_by_gloo(tensor_of(rank))};
            group.allgather(lists, inputs)->wait();
            return list;
          })};
}

bool gloo_moves(at::ScalarType dtype) {
  return dtype != at::kShort && (class_of(dtype) != DtypeClass::kOther || dtype == at::kComplexHalf);
}

TEST(GlooComparison, MovesOfEveryDtype) {
  Dtypes dtypes(std::begin(kDtypes), std::end(kDtypes));
  dtypes.insert(dtypes.end(), std::begin(kOtherDtypes), std::end(kOtherDtypes));
  for (const at::ScalarType dtype : dtypes) {
    for (const Pair& pair :
         {broadcast_both([&](int rank) { return input_of(rank, {7}, at::kLong).to(dtype); }),
          all_gather_both(dtype, [](int) { return 5; })}) {
      if (gloo_moves(dtype)) expect_same(pair, c10::toString(dtype));
      if (!gloo_moves(dtype)) expect_only_gloo_refuses(pair, "Invalid scalar type", c10::toString(dtype));
    }
  }
}

TEST(GlooComparison, AllGatherOfDifferentShapesIsRefusedByGloo) {
  expect_only_gloo_refuses(all_gather_both(at::kFloat, [](int rank) { return rank + 1; }),
                           "ProcessGroupGloo::allgather: invalid tensor size", "uneven all_gather");
}

// `other`: the dtype of the second tensor; the first one is of floats.
Pair all_reduce_coalesced_both(at::ScalarType other) {
  const auto make = [=](int rank) {
    return Tensors{input_of(rank, {3}, at::kFloat), input_of(rank, {2, 2}, other)};
  };
  return {run_ours([&](const Group& group, int rank) {
            const Tensors list = make(rank);
            all_reduce_coalesced(list, ReduceOp::kSum, group);
            return list;
          }),
          run_gloo([&](Gloo& group, int rank) {
            Tensors list = make(rank);
            group.allreduce_coalesced(list)->wait();
            return list;
          })};
}

Pair all_gather_coalesced_both(at::ScalarType other) {
  const auto make = [=](int rank) {
    return Tensors{input_of(rank, {3}, at::kFloat), input_of(rank, {2, 2}, other)};
  };
  const auto outputs = [=] {
    std::vector<Tensors> lists;
    for (int i = 0; i < kRanks; ++i) lists.push_back({at::zeros({3}), at::zeros({2, 2}, other)});
    return lists;
  };
  const auto flat = [](const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  };
  return {run_ours([&](const Group& group, int rank) {
            const std::vector<Tensors> lists = outputs();
            all_gather_coalesced(lists, make(rank), group);
            return flat(lists);
          }),
          run_gloo([&](Gloo& group, int rank) {
            std::vector<Tensors> lists = outputs();
            Tensors inputs = make(rank);
            group.allgather_coalesced(lists, inputs)->wait();
            return flat(lists);
          })};
}

Pair all_gather_into_tensor_coalesced_both(at::ScalarType other) {
  const auto inputs = [=](int rank) {
    return Tensors{input_of(rank, {3}, at::kFloat), input_of(rank, {2}, other)};
  };
  const auto outputs = [=] { return Tensors{at::zeros({3 * kRanks}), at::zeros({2 * kRanks}, other)}; };
  return {run_ours([&](const Group& group, int rank) {
            const Tensors into = outputs();
            all_gather_into_tensor_coalesced(into, inputs(rank), group);
            return into;
          }),
          run_gloo([&](Gloo& group, int rank) {
            Tensors into = outputs(), from = inputs(rank);
            group.allgather_into_tensor_coalesced(into, from)->wait();
            return into;
          })};
}

Pair reduce_scatter_tensor_coalesced_both(at::ScalarType other) {
  const auto inputs = [=](int rank) {
    return Tensors{input_of(rank, {3 * kRanks}, at::kFloat), input_of(rank, {2 * kRanks}, other)};
  };
  const auto outputs = [=] { return Tensors{at::zeros({3}), at::zeros({2}, other)}; };
  return {run_ours([&](const Group& group, int rank) {
            const Tensors into = outputs();
            reduce_scatter_tensor_coalesced(into, inputs(rank), ReduceOp::kSum, group);
            return into;
          }),
          run_gloo([&](Gloo& group, int rank) {
            Tensors into = outputs(), from = inputs(rank);
            group.reduce_scatter_tensor_coalesced(into, from)->wait();
            return into;
          })};
}

TEST(GlooComparison, CoalescedCalls) {
  expect_same(all_reduce_coalesced_both(at::kFloat), "all_reduce_coalesced");
  expect_same(all_gather_coalesced_both(at::kFloat), "all_gather_coalesced");
  expect_same(all_gather_into_tensor_coalesced_both(at::kFloat), "all_gather_into_tensor_coalesced");
  for (const at::ScalarType other : {at::kFloat, at::kDouble})
    expect_same(reduce_scatter_tensor_coalesced_both(other), "reduce_scatter_tensor_coalesced");
}

// Gloo refuses the sums, but all_gather gives wrong values: the Python of torch.distributed refuses it.
TEST(GlooComparison, CoalescedCallsOfTwoDtypesNeedThisLibrary) {
  expect_only_gloo_refuses(all_reduce_coalesced_both(at::kDouble), "tensors must all have the same type",
                           "all_reduce_coalesced of two dtypes");
  const Pair lists = all_gather_coalesced_both(at::kDouble);
  const Pair tensors = all_gather_into_tensor_coalesced_both(at::kDouble);
  for (const Pair& pair : {lists, tensors}) {
    ASSERT_TRUE(pair.ours.ok() && pair.gloo.ok()) << pair.ours.error() << pair.gloo.error();
    EXPECT_FALSE(same(pair.ours, pair.gloo));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<std::size_t>(2 * rank);
    EXPECT_TRUE(lists.ours.tensors[0][i].equal(input_of(rank, {3}, at::kFloat)));
    EXPECT_TRUE(lists.ours.tensors[0][i + 1].equal(input_of(rank, {2, 2}, at::kDouble)));
    EXPECT_TRUE(tensors.ours.tensors[0][1].narrow(0, 2 * rank, 2).equal(input_of(rank, {2}, at::kDouble)));
  }
}

// Rank r has the row r twice, and all have the row 3.
at::Tensor sparse_of(int rank, at::ScalarType dtype, int64_t columns = 2) {
  const at::Tensor rows = at::tensor({rank, rank, 3}, at::kLong).view({1, 3});
  return at::sparse_coo_tensor(rows, at::ones({3, columns}).to(dtype), {4, columns});
}

TEST(GlooComparison, SumsOfSparseTensors) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kByte, at::kInt, at::kLong}) {
    expect_same(all_reduce_both([&](int rank) { return sparse_of(rank, dtype); }, ReduceOp::kSum),
                absl::StrCat("sparse ", c10::toString(dtype)));
  }
  for (const at::ScalarType dtype :
       {at::kHalf, at::kBool, at::kShort, at::kComplexFloat, at::kComplexDouble}) {
    expect_only_gloo_refuses(
        all_reduce_both([&](int rank) { return sparse_of(rank, dtype); }, ReduceOp::kSum), "",
        absl::StrCat("sparse ", c10::toString(dtype)));
  }
  const auto empty = [](int) { return sparse_of(0, at::kFloat).zero_(); };
  expect_same(all_reduce_both(empty, ReduceOp::kSum), "sparse tensors without values");
}

TEST(GlooComparison, OtherReductionsOfSparseTensors) {
  const auto make = [](int rank) { return sparse_of(rank, at::kFloat); };
  expect_only_gloo_refuses(all_reduce_both(make, ReduceOp::kAvg), "unsupported reduction operation",
                           "average of sparse tensors");
  expect_both_refuse(all_reduce_both(make, ReduceOp::kMax), "maximum of sparse tensors");
  // The error here names the rank that differs.
  const Pair shapes = all_reduce_both([](int rank) { return sparse_of(rank, at::kFloat, rank == 2 ? 3 : 2); },
                                      ReduceOp::kSum);
  expect_both_refuse(shapes, "sparse tensors of different shapes");
  EXPECT_THAT(shapes.ours.error(), HasSubstr("rank 2 has Float[4, 3]"));
}

}  // namespace
}  // namespace gradwire::collectives
