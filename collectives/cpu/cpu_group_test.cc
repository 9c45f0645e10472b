#include "gradwire/collectives/cpu/cpu_group.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/bytes/plain_reducer.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/interface/forwarding_store.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/store/prefix_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

using Longs = PlainReducer<int64_t, Sum>;

absl::Time call_deadline() { return Clock::system().now() + absl::Seconds(60); }

Span span_of(std::vector<int64_t>& values) { return {values.data(), values.size() * sizeof(int64_t)}; }

std::vector<Span> spans(std::vector<std::vector<int64_t>>& lists) {
  std::vector<Span> result;
  for (auto& list : lists) result.push_back(span_of(list));
  return result;
}

std::vector<int64_t> values_from(int rank, std::size_t count, int64_t salt = 0) {
  std::vector<int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<int64_t>(i * 7 + 13 * salt) * (rank + 1) + rank;
  return values;
}

// The host of each rank. A rank with an empty host shares memory with no other rank.
struct Place {
  const char* name;
  std::vector<std::string> hosts;
};

std::ostream& operator<<(std::ostream& out, const Place& place) { return out << place.name; }

// A store from which this member reads one value wrongly.
class MisreadStore : public store::ForwardingStore {
 public:
  MisreadStore(std::shared_ptr<store::Store> store, std::string key, std::string misread)
      : ForwardingStore(std::move(store)), key_(std::move(key)), misread_(std::move(misread)) {}

 private:
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time call_deadline) override {
    auto value = ForwardingStore::do_watch(key, last_value, call_deadline);
    if (value.ok() && value->has_value() && key == key_) *value = misread_;
    return value;
  }

  const std::string key_;
  const std::string misread_;
};

// The value that one member reads wrongly.
struct Misread {
  int rank = -1;
  std::string key;
  std::string value;
};

// Runs every member in its own thread. Member i is rank i * step of the world.
void in_groups(const std::vector<std::string>& hosts, const std::function<void(CpuGroup&)>& member,
               int step = 1, const Misread& misread = Misread()) {
  const auto store = std::make_shared<store::HashStore>();
  const int size = static_cast<int>(hosts.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto p2p = WorldP2p::create({.rank = rank * step,
                                   .size = size * step,
                                   .store = std::make_shared<store::PrefixStore>("mesh/", store)});
      ASSERT_TRUE(p2p.ok()) << p2p.status();
      CpuGroup::Options options{.rank = rank, .size = size, .name = "test", .store = store, .p2p = *p2p};
      if (rank == misread.rank)
        options.store = std::make_shared<MisreadStore>(store, misread.key, misread.value);
      for (int each = 0; each < size; ++each) options.world_ranks.push_back(each * step);
      options.timeout = absl::Seconds(60);
      options.host = hosts[rank];
      auto group = CpuGroup::create(std::move(options));
      ASSERT_TRUE(group.ok()) << group.status();
      member(**group);
      // No member leaves while others still work.
      EXPECT_TRUE(store->try_set(absl::StrCat("end/", rank), "").ok());
      for (int each = 0; each < size; ++each) {
        EXPECT_TRUE(store->try_wait({absl::StrCat("end/", each)}, absl::Seconds(60)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CpuGroupTest : public ::testing::TestWithParam<Place> {};

TEST_P(CpuGroupTest, EveryOperationWorks) {
  const std::vector<std::string>& hosts = GetParam().hosts;
  const int size = static_cast<int>(hosts.size());
  in_groups(hosts, [&](CpuGroup& group) {
    const int rank = group.rank();
    for (const std::size_t count : {0u, 1u, 7u, 1000u, 40001u}) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " count ", count));
      std::vector<std::vector<int64_t>> all, lists;
      std::vector<int64_t> sum(count);
      for (int each = 0; each < size; ++each) {
        all.push_back(values_from(each, count));
        for (std::size_t i = 0; i < count; ++i) sum[i] += all.back()[i];
      }
      std::vector<int64_t> mine = all[rank];
      ASSERT_TRUE(group.all_reduce(span_of(mine), Longs(), call_deadline()).ok());
      ASSERT_EQ(mine, sum);
      for (int root = 0; root < size; ++root) {
        mine = all[rank];
        ASSERT_TRUE(group.broadcast(span_of(mine), root, call_deadline()).ok());
        ASSERT_EQ(mine, all[root]);
        mine = all[rank];
        ASSERT_TRUE(group.reduce(span_of(mine), root, Longs(), call_deadline()).ok());
        ASSERT_EQ(mine, rank == root ? sum : all[rank]);
        lists.assign(rank == root ? size : 0, std::vector<int64_t>(count));
        ASSERT_TRUE(group.gather(span_of(mine = all[rank]), spans(lists), root, call_deadline()).ok());
        if (rank == root) {
          ASSERT_EQ(lists, all);
        }
        mine.assign(count, 0);
        ASSERT_TRUE(group.scatter(span_of(mine), spans(lists), root, call_deadline()).ok());
        ASSERT_EQ(mine, all[rank]);
      }
      lists.assign(size, std::vector<int64_t>(count));
      ASSERT_TRUE(group.all_gather(span_of(mine), spans(lists), call_deadline()).ok());
      ASSERT_EQ(lists, all);
      lists.clear();
      std::vector<int64_t> expected(count);
      std::vector<std::vector<int64_t>> outputs, wanted;
      for (int each = 0; each < size; ++each) {
        lists.push_back(values_from(rank, count, each));
        outputs.emplace_back(count);
        wanted.push_back(values_from(each, count, rank));
        for (std::size_t i = 0; i < count; ++i) expected[i] += wanted.back()[i];
      }
      ASSERT_TRUE(group.reduce_scatter(span_of(mine), spans(lists), Longs(), call_deadline()).ok());
      ASSERT_EQ(mine, expected);
      ASSERT_TRUE(group.all_to_all(spans(outputs), spans(lists), call_deadline()).ok());
      ASSERT_EQ(outputs, wanted);
      ASSERT_TRUE(group.barrier(call_deadline()).ok());
    }
    // Point-to-point: every rank sends to the next.
    std::vector<int64_t> out{rank, 1}, in(2);
    const Future<void> sent = group.send((rank + 1) % size, 5, span_of(out), call_deadline());
    ASSERT_EQ(group.receive(kAnyRank, 5, span_of(in), call_deadline()).wait(), (rank + size - 1) % size);
    EXPECT_EQ(in[0], (rank + size - 1) % size);
    sent.wait();
  });
}

TEST_P(CpuGroupTest, EndsOnEveryHostWhenOneMemberFails) {
  const std::vector<std::string>& hosts = GetParam().hosts;
  const int size = static_cast<int>(hosts.size());
  if (size == 1) return;
  in_groups(hosts, [&](CpuGroup& group) {
    std::vector<int64_t> mine(1000);
    if (group.rank() == size - 1) {
      group.abort("this rank aborts on purpose");
      return;
    }
    const absl::Status status = group.all_reduce(span_of(mine), Longs(), call_deadline());
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StrContains(status.message(), "aborts on purpose") ||
                absl::StrContains(status.message(), absl::StrCat("rank ", size - 1)))
        << status;
    EXPECT_EQ(group.barrier(call_deadline()).code(), absl::StatusCode::kAborted);
  });
}

TEST(CpuGroup, ErrorsNameRanksOfTheGroup) {
  const auto member = [](CpuGroup& group) {
    if (group.rank() == 1) return;
    const auto late = [] { return Clock::system().now() + absl::Milliseconds(50); };
    std::vector<int64_t> into(1);
    const absl::Status alone = group.receive(1, 5, span_of(into), late()).result().status();
    EXPECT_TRUE(absl::StrContains(alone.message(), "arrived from rank 1")) << alone;
    const absl::Status all = group.barrier(late());
    EXPECT_EQ(all.code(), absl::StatusCode::kDeadlineExceeded) << all;
    EXPECT_TRUE(absl::StrContains(all.message(), "arrived from rank 1")) << all;
  };
  in_groups({"a", "b"}, member, /*step=*/2);
}

// Expects that the group works, and that it counts `hosts` hosts.
void expect_works(CpuGroup& group, int size, int hosts) {
  EXPECT_EQ(group.hosts(), hosts);
  std::vector<int64_t> mine(1000, group.rank() + 1);
  ASSERT_TRUE(group.all_reduce(span_of(mine), Longs(), call_deadline()).ok());
  EXPECT_EQ(mine, std::vector<int64_t>(1000, size * (size + 1) / 2));
  ASSERT_TRUE(group.broadcast(span_of(mine), size - 1, call_deadline()).ok());
  std::vector<int64_t> out{group.rank()}, in(1);
  const Future<void> sent = group.send((group.rank() + 1) % size, 5, span_of(out), call_deadline());
  EXPECT_EQ(group.receive(kAnyRank, 5, span_of(in), call_deadline()).wait(),
            (group.rank() + size - 1) % size);
  sent.wait();
}

TEST(CpuGroup, MemoryThatOneMemberCannotReachIsReplacedByMessages) {
  for (const char* entry : {"garbage", "1 2 0123456789abcdef", "failed: no memory"}) {
    SCOPED_TRACE(entry);
    in_groups({"a", "a", "a"}, [](CpuGroup& group) { expect_works(group, 3, 3); }, 1,
              {.rank = 2, .key = "memory/0//memory", .value = entry});
  }
  // The members of the other host still share their memory.
  in_groups({"a", "a", "b", "b"}, [](CpuGroup& group) { expect_works(group, 4, 3); }, 1,
            {.rank = 1, .key = "memory/0//memory", .value = "garbage"});
}

TEST(CpuGroup, MemberThatFailsAfterTheOthersJoinedIsNotWaitedFor) {
  for (const int rank : {0, 2}) {
    in_groups({"a", "a", "a"}, [](CpuGroup& group) { expect_works(group, 3, 3); }, 1,
              {.rank = rank, .key = "memory/0//joined/1", .value = "permission denied"});
  }
}

TEST(CpuGroup, RingsThatOneMemberCannotReachAreReplacedByMessages) {
  for (const char* key : {"shm_p2p//memory", "shm_p2p//joined/1"}) {
    in_groups({"a", "a", "a"}, [](CpuGroup& group) { expect_works(group, 3, 1); }, 1,
              {.rank = 2, .key = key, .value = "garbage"});
  }
}

INSTANTIATE_TEST_SUITE_P(Places, CpuGroupTest,
                         ::testing::Values(Place{"alone", {"a"}}, Place{"one host", {"a", "a", "a"}},
                                           Place{"nothing shared", {"", "", ""}},
                                           Place{"two and two", {"a", "a", "b", "b"}},
                                           Place{"interleaved", {"a", "b", "a", "b", "c"}}));

}  // namespace
}  // namespace gradwire::collectives::cpu
