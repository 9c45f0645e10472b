#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/host/host_group.h"
#include "gradwire/collectives/cpu/host/host_group_test_members.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST(HostGroup, TimeoutNamesMissingMembers) {
  in_group(1, kAlgorithmSizes[0], [](HostGroup&) {});
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      HostGroup::Options options = options_for(kAlgorithmSizes[2], i, 3, store);
      options.names = {10, 20, 30};
      auto group = HostGroup::join(options);
      ASSERT_TRUE(group.ok()) << group.status();
      if (i == 1) {
        // Does not leave until the others have failed.
        EXPECT_TRUE(store->try_wait({"gave up 0", "gave up 2"}, absl::Seconds(60)).ok());
        EXPECT_EQ((*group)->barrier(deadline()).code(), absl::StatusCode::kAborted);
        return;
      }
      std::vector<int64_t> mine(5);
      const absl::Status status =
          (*group)->all_reduce(span(mine), Longs(), Clock::system().now() + absl::Seconds(2));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "did not arrive: rank 20")) << status;
      const absl::Status later = (*group)->barrier(deadline());
      EXPECT_EQ(later.code(), absl::StatusCode::kAborted) << later;
      EXPECT_TRUE(absl::StrContains(later.message(), "rank 20")) << later;
      EXPECT_TRUE(store->try_set(absl::StrCat("gave up ", i), "").ok());
      EXPECT_TRUE(store->try_wait({"gave up 0", "gave up 2"}, absl::Seconds(60)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The test plays member 1, which publishes a block without an end, and seems to be in every phase already.
TEST(HostGroup, AllGatherOfABlockWithoutEndFailsAtTheDeadline) {
  const auto store = std::make_shared<store::HashStore>();
  const HostGroup::Options options = options_for(kAlgorithmSizes[0], 1, 2, store);
  std::unique_ptr<HostMemory> hostile;
  std::thread joining([&] { hostile = HostMemory::join(options.memory).value(); });
  auto group = HostGroup::join(options_for(kAlgorithmSizes[0], 0, 2, store));
  joining.join();
  ASSERT_TRUE(group.ok()) << group.status();
  for (const int phase : {0, 1}) {
    constexpr uint64_t kEndless = uint64_t{1} << 62;
    std::memcpy(hostile->line(1, phase).bytes, &kEndless, sizeof kEndless);
    hostile->line(1, phase).sequence.store(std::numeric_limits<uint64_t>::max());
  }
  std::vector<std::vector<int64_t>> lists(2, std::vector<int64_t>(1000));
  std::vector<int64_t> mine(1000);
  const absl::Status status =
      (*group)->all_gather(span(mine), spans(lists), Clock::system().now() + absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "a block of 4611686018427387904 bytes")) << status;
}

TEST(HostGroup, FailsWhenAMemberLeaves) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread leaver(
      [&] { ASSERT_TRUE(HostGroup::join(options_for(kAlgorithmSizes[2], 1, 2, store)).ok()); });
  auto group = HostGroup::join(options_for(kAlgorithmSizes[2], 0, 2, store));
  ASSERT_TRUE(group.ok()) << group.status();
  leaver.join();
  const absl::Status status = (*group)->barrier(deadline());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 is lost")) << status;
}

TEST(HostGroup, EndsEverywhereOnAbort) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread other([&] {
    auto group = HostGroup::join(options_for(kAlgorithmSizes[2], 1, 2, store));
    ASSERT_TRUE(group.ok());
    (*group)->abort("aborted by the user");
    EXPECT_TRUE(store->try_wait({"done"}, absl::Seconds(60)).ok());
  });
  auto group = HostGroup::join(options_for(kAlgorithmSizes[2], 0, 2, store));
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<int64_t> mine(5);
  const absl::Status status = (*group)->all_reduce(span(mine), Longs(), deadline());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "aborted by the user")) << status;
  EXPECT_TRUE(store->try_set("done", "").ok());
  other.join();
}

// An empty reason must not count as one that its member has not finished writing.
TEST(HostGroup, AbortWithoutAReasonIsACompleteReason) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread other([&] {
    auto group = HostGroup::join(options_for(kAlgorithmSizes[2], 1, 2, store));
    ASSERT_TRUE(group.ok());
    (*group)->abort("");
    EXPECT_TRUE(store->try_wait({"done"}, absl::Seconds(60)).ok());
  });
  auto group = HostGroup::join(options_for(kAlgorithmSizes[2], 0, 2, store));
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = (*group)->barrier(deadline());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no reason was given (found by rank 1)")) << status;
  EXPECT_TRUE(store->try_set("done", "").ok());
  other.join();
}

TEST(HostGroup, AllToAllRefusesMismatchedSizes) {
  in_group(1, kAlgorithmSizes[0], [](HostGroup&) {});
  // Blocks of 4 elements go through slots, those of 2 through lines.
  for (const auto& [sizes, elements] : {std::pair(kAlgorithmSizes[0], 4), std::pair(kAlgorithmSizes[2], 4),
                                        std::pair(kAlgorithmSizes[2], 2)}) {
    const std::string message =
        absl::StrCat("rank 0 sends ", 8 * elements, " bytes to rank 1, which expects ", 8 * elements - 8);
    const auto store = std::make_shared<store::HashStore>();
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i, &sizes = sizes, elements = static_cast<std::size_t>(elements)] {
        auto group = HostGroup::join(options_for(sizes, i, 2, store));
        ASSERT_TRUE(group.ok());
        std::vector<std::vector<int64_t>> inputs(2, std::vector<int64_t>(elements)),
            outputs(2, std::vector<int64_t>(elements));
        if (i == 1) outputs[0].resize(elements - 1);
        const absl::Status status = (*group)->all_to_all(spans(outputs), spans(inputs), deadline());
        const absl::Status then = (*group)->barrier(deadline());
        EXPECT_FALSE(then.ok());
        EXPECT_TRUE(absl::StrContains(then.message(), message)) << then;
        if (i == 1) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        }
        EXPECT_TRUE(store->try_set(absl::StrCat("end ", i), "").ok());
        EXPECT_TRUE(store->try_wait({"end 0", "end 1"}, absl::Seconds(60)).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(HostGroup, NoticesAKilledProcess) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/host_group_", getpid());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto group =
        HostGroup::join(options_for(kAlgorithmSizes[2], 1, 2, std::make_shared<store::FileStore>(path)));
    if (!group.ok() || write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  auto group =
      HostGroup::join(options_for(kAlgorithmSizes[2], 0, 2, std::make_shared<store::FileStore>(path)));
  ASSERT_TRUE(group.ok()) << group.status();
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::vector<int64_t> mine(5);
  absl::Time killed;
  std::thread killer([&] {
    killed = Clock::system().now();
    kill(child, SIGKILL);
  });
  const absl::Status status = (*group)->all_reduce(span(mine), Longs(), deadline());
  const absl::Time noticed = Clock::system().now();
  killer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 is lost")) << status;
  EXPECT_LT(noticed - killed, absl::Seconds(30));
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace gradwire::collectives::cpu
