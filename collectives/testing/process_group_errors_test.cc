// Tests the errors of groups: invalid arguments, missing and leaving ranks, abort, destruction, options that
// differ.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/init/init_method.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;
using testing::run_threads;

[[maybe_unused]] const bool errors_use_local_backend = (testing::use_local_backend(), true);

std::string text(const absl::Status& status) { return status.ToString(); }

TEST(ProcessGroupErrors, WrongArgumentsThrowBeforeAnythingIsSent) {
  Ranks ranks(2);
  const Group& group = ranks[0];
  const at::Tensor tensor = at::ones({2});
  const auto refuses = [&](const std::function<void()>& body, const std::string& part) {
    const absl::Status status = status_of(body);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(text(status), AllOf(HasSubstr(part), HasSubstr("of group \"world\" (rank 0 of 2)")));
  };
  refuses([&] { group->broadcast(tensor, 2); }, "broadcast of group");
  refuses([&] { group->broadcast_async(tensor, -1); }, "src is rank -1");
  refuses([&] { group->reduce(tensor, 0, ReduceOp::kBand); }, "band of Float");
  refuses([&] { group->all_reduce(at::ones({2}, at::kLong), ReduceOp::kAvg); }, "avg of Long");
  refuses([&] { group->all_reduce(at::ones({2}, at::kComplexFloat), ReduceOp::kMax); },
          "max of ComplexFloat");
  refuses([&] { group->all_reduce(at::ones({2}, at::kInt), premul_sum(2)); }, "premul_sum of Int");
  refuses([&] { group->broadcast(at::ones({2}).to_sparse(), 0); }, "not dense");
  refuses([&] { group->all_reduce(at::ones({2}).to_sparse(), ReduceOp::kMin); }, "min of a sparse tensor");
  refuses([&] { group->all_reduce(at::ones({1}).expand({2})); }, "share memory");
  refuses([&] { group->gather(tensor, {}, 0); }, "list has 0 tensors");
  refuses([&] { group->scatter(tensor, {tensor, tensor}, 1); }, "empty except at the root");
  refuses([&] { group->all_gather({tensor}, tensor); }, "list has 1 tensors");
  refuses([&] { group->all_gather({at::ones({3}), tensor}, tensor); }, "list[0] is Float[3]");
  refuses([&] { group->reduce_scatter(tensor, {tensor, at::ones({3})}); }, "list[1]");
  refuses([&] { group->all_to_all({tensor, tensor}, {tensor}); }, "inputs has 1");
  refuses([&] { group->all_gather_into_tensor(tensor, tensor); }, "2 times input");
  refuses([&] { group->all_to_all_single(tensor, tensor, {2, 0}, {1, 1}); }, "this rank itself");
  refuses([&] { group->send(tensor, 5); }, "dst is rank 5");
  refuses([&] { group->irecv(tensor, 1, -4); }, "the tag is -4");
  refuses([&] { group->all_reduce_multigpu_async({tensor}); }, "needs nccl");
  // Nothing was sent to the other rank, and the group is still usable.
  ranks.run([](const Group& each) { each->barrier(); });
}

TEST(ProcessGroupErrors, TimeoutNamesTheMissingRanksAndBreaksTheGroup) {
  Ranks ranks(3, {.timeout = absl::Seconds(10)});
  ::testing::internal::CaptureStderr();
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 1) group->all_reduce(at::ones({2}));
  });
  EXPECT_EQ(results[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(results[1]), AllOf(HasSubstr("all_reduce #0 of group \"world\" (rank 1 of 3): "),
                                      HasSubstr("ranks 0, 2 did not arrive")));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("timed out"), HasSubstr("#0 all_reduce Float[2] sum: failed (DEADLINE_EXCEEDED)")));
  for (const absl::Status& later : ranks.results([](const Group& group) { group->barrier(); })) {
    EXPECT_EQ(later.code(), absl::StatusCode::kAborted) << later;
    EXPECT_THAT(text(later), HasSubstr("ranks 0, 2 did not arrive"));
  }
}

TEST(ProcessGroupErrors, RankThatLeavesIsNamed) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 2) {
      group->destroy();
    } else {
      group->all_reduce_async(at::ones({2}))->wait();
    }
  });
  EXPECT_TRUE(results[2].ok());
  // One of the two ranks detects it; the other detects it too, or gets the first one's reason.
  for (int rank : {0, 1}) EXPECT_THAT(text(results[rank]), HasSubstr("rank 2 has left"));
}

TEST(ProcessGroupErrors, AbortEndsOperationsUnderWay) {
  Ranks ranks(2);
  const std::shared_ptr<Work> work = ranks[0]->all_reduce_async(at::ones({2}));
  std::thread waiting([&] {
    EXPECT_THAT(text(status_of([&] { ranks[0]->monitored_barrier(); })),
                HasSubstr("aborted: requested by the test"));
  });
  ranks[0]->abort("requested by the test");
  EXPECT_THAT(text(status_of([&] { work->wait(); })),
              AllOf(HasSubstr("ABORTED"), HasSubstr("aborted: requested by the test")));
  EXPECT_NE(work->exception(), nullptr);
  EXPECT_FALSE(work->is_success());
  waiting.join();
  EXPECT_EQ(status_of([&] { ranks[1]->barrier(); }).code(), absl::StatusCode::kAborted);
}

TEST(ProcessGroupErrors, DestroyedGroupRefusesEverythingAndMayBeDestroyedAgain) {
  Ranks ranks(2);
  const at::Tensor tensor = at::ones({2});
  ranks.run([](const Group& group) {
    group->barrier();
    group->destroy();
    group->destroy();
  });
  const Group& group = ranks[0];
  for (const std::function<void()>& body : std::vector<std::function<void()>>{
           [&] { group->all_reduce(tensor); }, [&] { group->all_reduce_async(tensor); },
           [&] { group->send(tensor, 1); }, [&] { group->irecv(tensor); },
           [&] { group->monitored_barrier(); }, [&] { group->new_group(); }}) {
    const absl::Status status = status_of(body);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(text(status), HasSubstr("has been destroyed"));
  }
}

TEST(ProcessGroupErrors, DestroyWaitsForOperationsUnderWayOrAbortsThem) {
  Ranks ranks(2, {.timeout = absl::Seconds(30)});
  ranks.run([](const Group& group) {
    const at::Tensor tensor = at::ones({2});
    const std::shared_ptr<Work> work = group->all_reduce_async(tensor);
    if (group->rank() == 1) work->wait();
    group->destroy();
    EXPECT_TRUE(work->is_success());
    EXPECT_TRUE(tensor.equal(at::full({2}, 2.0)));
  });
  Ranks others(2, {.timeout = absl::Seconds(10)});
  const std::shared_ptr<Work> alone = others[0]->all_reduce_async(at::ones({2}));
  others[0]->destroy();
  EXPECT_TRUE(alone->is_completed());
  EXPECT_NE(alone->exception(), nullptr);
}

TEST(ProcessGroupErrors, CallbackOfItsOwnOperationCannotDestroyTheGroup) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const Future<int> ended = group->barrier_async()->future();
    const Future<absl::StatusCode> code = ended.then([group](int) {
      const absl::Status status = status_of([&] { group->destroy(); });
      return status.code();
    });
    // If the future was already done, then() ran the callback on this thread, which may destroy the group.
    const absl::StatusCode found = code.wait();
    EXPECT_TRUE(found == absl::StatusCode::kFailedPrecondition || found == absl::StatusCode::kOk);
  });
}

std::vector<absl::Status> create_all(std::vector<ProcessGroupOptions> options) {
  const auto store = std::make_shared<store::HashStore>();
  return run_threads(static_cast<int>(options.size()), [&](int rank) {
    options[rank].store = store;
    if (options[rank].rank < 0) options[rank].rank = rank;
    if (options[rank].world_size < 0) options[rank].world_size = static_cast<int>(options.size());
    ProcessGroup::create(options[rank])->destroy();
  });
}

TEST(ProcessGroupCreate, InvalidOptionsAreRefused) {
  const auto refuses = [](ProcessGroupOptions options, const std::string& part) {
    const absl::Status status = status_of([&] { ProcessGroup::create(options); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(text(status), HasSubstr(part));
  };
  const auto store = std::make_shared<store::HashStore>();
  refuses({.store = store}, "rank and world_size are required");
  refuses({.world_size = 2, .store = store}, "rank and world_size are required");
  refuses({.world_size = 2, .rank = 2, .store = store}, "rank 2");
  refuses({.world_size = 0, .rank = 0, .store = store}, "world size must be positive");
  refuses({.timeout = absl::ZeroDuration(), .world_size = 1, .rank = 0, .store = store}, "timeout");
  refuses({.backend = "smoke", .world_size = 1, .rank = 0, .store = store},
          "\"smoke\" is unknown; available backends: cpu (also gloo, tcp)");
  refuses({.backend = "mpi", .world_size = 1, .rank = 0, .store = store}, "not built into this program");
}

TEST(ProcessGroupCreate, DifferencesNameBothRanks) {
  for (const absl::Status& status : create_all({{}, {.check_consistency = true}, {}})) {
    EXPECT_THAT(text(status),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank 0 has check_consistency=0"),
                      HasSubstr("rank 1 has check_consistency=1")));
  }
  for (const absl::Status& status : create_all({{.options = {{"transports", "tcp"}}}, {}})) {
    EXPECT_THAT(text(status), HasSubstr("rank 0 has option transports=tcp, rank 1 has no such option"));
  }
  for (const absl::Status& status : create_all({{.world_size = 2}, {.world_size = 3}})) {
    EXPECT_THAT(text(status),
                AllOf(HasSubstr("rank 0 reports world_size=2"), HasSubstr("rank 1 reports world_size=3")));
  }
}

TEST(ProcessGroupCreate, MissingRanksAreNamed) {
  const auto store = std::make_shared<store::HashStore>();
  const auto results = run_threads(2, [&](int rank) {
    ProcessGroup::create(
        {.timeout = absl::Seconds(10), .world_size = 4, .rank = rank == 0 ? 0 : 2, .store = store});
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(text(status), HasSubstr("ranks 1, 3 did not arrive"));
  }
}

TEST(ProcessGroupCreate, RankGivenTwiceIsNamedAtOnce) {
  // Three cases: a rank is missing because another is given twice; rank 0 is missing too; rank 0 is given
  // twice.
  for (const std::vector<int>& given : std::vector<std::vector<int>>{{0, 1, 1}, {1, 1}, {0, 0, 1}}) {
    const auto store = std::make_shared<store::HashStore>();
    const auto results = run_threads(static_cast<int>(given.size()), [&](int i) {
      ProcessGroup::create({.timeout = absl::Seconds(60),
                            .world_size = 3,
                            .rank = given[static_cast<std::size_t>(i)],
                            .store = store});
    });
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
      EXPECT_THAT(text(status), HasSubstr(absl::StrCat("rank ", given[1] == 0 ? 0 : 1,
                                                       " is claimed by two processes: process ")));
    }
  }
}

TEST(ProcessGroupCreate, BadNameIsRefused) {
  for (const std::string& name : {std::string("a/b"), std::string("a b"), std::string(1 << 20, 'a')}) {
    const auto store = std::make_shared<store::HashStore>();
    const auto results = run_threads(1, [&](int rank) {
      (void)ProcessGroup::create({.world_size = 1, .rank = rank, .store = store, .group_name = name});
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument) << results[0];
    EXPECT_THAT(text(results[0]), HasSubstr("bad name of a process group: got \"a"));
    EXPECT_EQ(store->num_keys(), 0);
  }
}

TEST(ProcessGroupCreate, StoreServesSeveralWorldsOneAfterTheOtherAndSideBySide) {
  const auto store = std::make_shared<store::HashStore>();
  for (int round = 0; round < 3; ++round) {
    const auto results = run_threads(2, [&](int rank) {
      const Group one =
          ProcessGroup::create({.world_size = 2, .rank = rank, .store = store, .group_name = "one"});
      const Group two =
          ProcessGroup::create({.world_size = 2, .rank = rank, .store = store, .group_name = "t.w"});
      at::Tensor tensor = at::ones({1});
      one->all_reduce(tensor);
      two->all_reduce(tensor);
      EXPECT_EQ(tensor.item<double>(), 4);
      one->destroy();
      two->destroy();
    });
    for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ProcessGroupCreate, UsesAnInitMethodThatOthersAlsoUse) {
  const std::string method = absl::StrCat("file://", ::testing::TempDir(), "/rendezvous", random_id());
  const auto results = run_threads(2, [&](int rank) {
    // A rendezvous without a group name, as an rpc agent makes it.
    const auto other = store::rendezvous(method, rank, 2);
    ASSERT_TRUE(other.ok()) << other.status();
    // Either all ranks give their rank, or the init method assigns the ranks.
    const Group one = ProcessGroup::create({.init_method = method, .world_size = 2, .rank = rank});
    const Group two = ProcessGroup::create({.init_method = method, .world_size = 2, .group_name = "two"});
    at::Tensor tensor = at::ones({1});
    one->all_reduce(tensor);
    two->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), 4);
    one->destroy();
    two->destroy();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(ProcessGroupCreate, BackendThatFailsOnOneRankFailsOnAll) {
  register_backend(Backend::kCpu, [](const BackendContext& context) {
    if (context.rank == 1)
      return absl::StatusOr<std::unique_ptr<GroupBackend>>(absl::UnavailableError("backend not available"));
    return testing::make_local_backend(context);
  });
  const std::vector<absl::Status> results = create_all({{}, {}, {}});
  testing::use_local_backend();
  EXPECT_THAT(text(results[1]), HasSubstr("UNAVAILABLE"));
  for (int rank : {0, 2}) EXPECT_THAT(text(results[rank]), HasSubstr("rank 1 could not make its backend"));
}

}  // namespace
}  // namespace gradwire::collectives
