#include "rpc/directory.h"

#include <thread>

#include "gtest/gtest.h"
#include "store/hash_store.h"

namespace gradwire::rpc {
namespace {

using Joined = absl::StatusOr<std::vector<WorkerAddress>>;

class DirectoryTest : public testing::Test {
 protected:
  static Joined join(Directory& directory, const std::string& name, int id, int world_size,
                     absl::Duration timeout = absl::Seconds(30)) {
    static uint64_t next_incarnation = 1000;
    const Worker self{name, id, ++next_incarnation};
    proto::WorkerRecord record;
    record.set_name(name);
    record.set_id(id);
    record.set_incarnation(self.incarnation);
    return directory.join(self, world_size, record, timeout);
  }

  std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  Directory a_{store_}, b_{store_}, c_{store_};
};

TEST_F(DirectoryTest, AllMembersSeeAll) {
  Joined seen_by_a;
  std::thread other([&] { seen_by_a = join(a_, "a", 0, 1 + 1); });
  // The incarnations are drawn from a plain counter: one thread at a time.
  while (!store_->try_get("worker/0", absl::Seconds(30)).ok()) {
  }
  Joined seen_by_b = join(b_, "b", 1, 2);
  other.join();
  ASSERT_TRUE(seen_by_a.ok()) << seen_by_a.status();
  ASSERT_TRUE(seen_by_b.ok()) << seen_by_b.status();
  for (const Joined& seen : {seen_by_a, seen_by_b}) {
    ASSERT_EQ(seen->size(), 2u);
    EXPECT_EQ((*seen)[0].worker.name, "a");
    EXPECT_EQ((*seen)[1].worker.name, "b");
  }
}

TEST_F(DirectoryTest, MissingRanksAreNamed) {
  const Joined joined = join(a_, "a", 1, 4, absl::Milliseconds(50));
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(joined.status().message().find("ranks 0, 2, 3 of 4 did not join"), std::string::npos)
      << joined.status();
}

TEST_F(DirectoryTest, TakenRankIsRefusedAndItsHolderStays) {
  ASSERT_TRUE(join(a_, "a", 0, 1).ok());
  const Joined taken = join(b_, "b", 0, 1);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(taken.status().message().find("rank 0 is taken by worker \"a\""), std::string::npos)
      << taken.status();
  ASSERT_TRUE(b_.leave().ok());
  EXPECT_TRUE(store_->try_get("worker/0", absl::ZeroDuration()).ok());
  EXPECT_TRUE(store_->try_get("name/a", absl::ZeroDuration()).ok());
}

TEST_F(DirectoryTest, TakenNameIsRefusedAndItsHolderStays) {
  EXPECT_FALSE(join(a_, "same", 0, 2, absl::ZeroDuration()).ok());
  const Joined taken = join(b_, "same", 1, 2);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(taken.status().message().find("\"same\" is taken by rank 0"), std::string::npos)
      << taken.status();
  ASSERT_TRUE(b_.leave().ok());
  EXPECT_TRUE(store_->try_get("name/same", absl::ZeroDuration()).ok());
  EXPECT_FALSE(store_->try_get("worker/1", absl::ZeroDuration()).ok());
}

TEST_F(DirectoryTest, OtherWorldSizeIsRefused) {
  EXPECT_FALSE(join(a_, "a", 0, 2, absl::ZeroDuration()).ok());
  const Joined other = join(b_, "b", 1, 3);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("world size 3, but the job has 2"), std::string::npos)
      << other.status();
}

TEST_F(DirectoryTest, LastToLeaveLeavesNothing) {
  EXPECT_FALSE(join(a_, "a", 0, 2, absl::ZeroDuration()).ok());
  ASSERT_TRUE(join(b_, "b", 1, 2).ok());
  ASSERT_TRUE(a_.leave().ok());
  EXPECT_FALSE(join(c_, "c", 0, 3).ok());
  ASSERT_TRUE(b_.leave().ok());
  ASSERT_TRUE(b_.leave().ok());
  EXPECT_EQ(*store_->try_num_keys(), 0);
  EXPECT_TRUE(join(c_, "c", 0, 1).ok());
}

TEST_F(DirectoryTest, ForeignBytesInTheStoreAreNoRecord) {
  store_->set("worker/1", "what is this");
  const Joined joined = join(a_, "a", 0, 2);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(joined.status().message().find("rank 1"), std::string::npos) << joined.status();
}

}  // namespace
}  // namespace gradwire::rpc
