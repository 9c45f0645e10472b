#include "gradwire/rpc/inspect/job_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kReadTimeout = absl::Seconds(30);

proto::LogLine join(const std::string& name, int id, uint64_t incarnation) {
  proto::LogLine line;
  proto::WorkerRecord& worker = *line.mutable_join()->mutable_worker();
  worker.set_name(name);
  worker.set_id(id);
  worker.set_incarnation(incarnation);
  return line;
}

proto::LogLine leave(uint64_t incarnation) {
  proto::LogLine line;
  line.mutable_leave()->set_incarnation(incarnation);
  return line;
}

class JobDirectoryTest : public ::testing::Test {
 protected:
  void append(const std::string& prefix, const proto::LogLine& line, int generation = 0) {
    // The first worker that opens the log makes this key.
    store_->set(absl::StrCat(prefix, "/generation"), absl::StrCat(generation));
    store_->set(absl::StrCat(prefix, "/log/", generation, "/", next_[prefix]++), line.SerializeAsString());
  }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    const auto read = directory_.read(kReadTimeout);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return names;
    for (const JobDirectory::Entry& entry : *read) {
      const char* const mark = entry.standing == JobDirectory::Standing::kMember ? ""
                               : entry.standing == JobDirectory::Standing::kDead ? " dead"
                                                                                 : " left";
      names.push_back(absl::StrCat(entry.record.name(), mark));
    }
    return names;
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  JobDirectory directory_{store_};
  std::map<std::string, int> next_;
};

TEST_F(JobDirectoryTest, AStoreWithoutAGroupIsNotFound) {
  store_->set("model", "1");
  const absl::Status status = directory_.read(kReadTimeout).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(JobDirectoryTest, FollowsTheMembersAndNamesThoseThatAreGone) {
  append("rpc", join("b", 1, 22));
  append("rpc", join("a", 0, 11));
  append("rpc", join("c", 2, 33));
  EXPECT_THAT(names(), ElementsAre("a", "b", "c"));
  proto::LogLine death;
  death.mutable_death()->set_incarnation(22);
  death.mutable_death()->set_by(11);
  death.mutable_death()->set_by_name("a");
  death.mutable_death()->set_reason("silent");
  append("rpc", death);
  append("rpc", leave(33));
  EXPECT_THAT(names(), ElementsAre("a", "c left", "b dead"));
  EXPECT_THAT(directory_.read(kReadTimeout)->back().reason, HasSubstr("silent (declared by \"a\")"));
  EXPECT_EQ(directory_.group(), "rpc");
}

TEST_F(JobDirectoryTest, TheLastRoundWithMembersIsTaken) {
  append("round_2/group/rpc/0/rpc", join("old", 0, 1));
  append("round_10/group/rpc/0/rpc", join("new", 0, 2));
  append("round_11/group/rpc/0/rpc", join("gone", 0, 3));
  append("round_11/group/rpc/0/rpc", leave(3));
  EXPECT_THAT(names(), ElementsAre("new"));
  EXPECT_EQ(directory_.group(), "round_10/group/rpc/0/rpc");
  append("group/rpc/0/rpc", join("other", 0, 4));
  append("round_12/group/rpc/0/rpc", join("newest", 0, 5));
  EXPECT_THAT(names(), ElementsAre("newest"));
}

TEST_F(JobDirectoryTest, MalformedLinesAndOtherKeysAreSkipped) {
  store_->set("rpc/log/0/0", "no line of a log");
  next_["rpc"] = 1;
  append("rpc", join("a", 0, 11));
  store_->set("rpc/log/x/0", "another key");
  store_->set("round_1/xrpc/log/0/0", "another key");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(JobDirectoryTest, ReadingChangesNothing) {
  append("group/rpc/0/rpc", join("a", 0, 11));
  const std::vector<std::string> before = store_->list_keys();
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(store_->list_keys(), before);
}

TEST(PrefixOfLog, IsFoundInKeysOfLogsOnly) {
  EXPECT_EQ(prefix_of_log("rpc/log/0/0"), "rpc");
  EXPECT_EQ(prefix_of_log("round_2/group/rpc/0/rpc/log/1/7"), "round_2/group/rpc/0/rpc");
  for (const char* key :
       {"", "rpc/log/", "rpc/log/0", "rpc/log/0/0/0", "rpc/log/0/a", "xrpc/log/0/0", "log/0/0"}) {
    EXPECT_EQ(prefix_of_log(key), "") << key;
  }
}

TEST(IsEarlierGroup, ComparesNumbers) {
  EXPECT_TRUE(is_earlier_group("round_2/group/rpc/0/rpc", "round_10/group/rpc/0/rpc"));
  EXPECT_FALSE(is_earlier_group("round_10/group/rpc/0/rpc", "round_2/group/rpc/0/rpc"));
  EXPECT_TRUE(is_earlier_group("group/rpc/0/rpc", "group/rpc/1/rpc"));
  EXPECT_FALSE(is_earlier_group("rpc", "rpc"));
}

}  // namespace
}  // namespace gradwire::rpc
