#include "tools/launch/nodes.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "store/hash_store.h"
#include "tools/launch/nodes_wire.h"

namespace gradwire::tools {
namespace {

class NodeGroupTest : public testing::Test {
 protected:
  std::unique_ptr<NodeGroup> start(int rank, int nnodes = 2,
                                   absl::Duration join_timeout = absl::Seconds(60)) {
    return *NodeGroup::start(
        {.nnodes = nnodes,
         .node_rank = rank,
         .self = {.host = "host" + std::to_string(rank), .role = "r", .local_world_size = rank + 1},
         .run_id = "run" + std::to_string(rank),
         .join_timeout = join_timeout},
        [this](absl::Duration) { return store_; });
  }

  template <class Condition>
  static NodeGroup::News wait_for(NodeGroup& group, Condition condition) {
    NodeGroup::News news = group.news();
    while (!condition(news)) {
      pollfd event{.fd = group.event_fd(), .events = POLLIN};
      constexpr int kTooLong = 50000;
      if (poll(&event, 1, kTooLong) == 0) {
        ADD_FAILURE() << "no news";
        break;
      }
      news = group.news();
    }
    return news;
  }
  static bool joined(const NodeGroup::News& news) { return news.joined.has_value(); }
  static bool failed(const NodeGroup::News& news) { return news.failed.has_value(); }
  static bool done(const NodeGroup::News& news) { return news.done; }

  std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
};

TEST_F(NodeGroupTest, AllNodesLearnOfAll) {
  auto first = start(0), second = start(1);
  for (NodeGroup* group : {first.get(), second.get()}) {
    const absl::StatusOr<NodeGroup::Joined> job = *wait_for(*group, joined).joined;
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->run_id, "run0");
    EXPECT_EQ(job->nodes, (std::vector<NodeEntry>{{"host0", "r", 1}, {"host1", "r", 2}}));
  }
}

TEST_F(NodeGroupTest, FailureOfOneNodeReachesTheOthers) {
  auto first = start(0), second = start(1);
  wait_for(*first, joined);
  wait_for(*second, joined);
  second->publish({.exit_code = 7, .description = "rank 1 failed first"});
  const NodeGroup::News news = wait_for(*first, failed);
  EXPECT_EQ(news.failed->exit_code, 7);
  EXPECT_EQ(news.failed->description, "rank 1 failed first");
}

TEST_F(NodeGroupTest, NodeZeroLeavesLast) {
  auto first = start(0), second = start(1);
  wait_for(*first, joined);
  wait_for(*second, joined);
  first->leave();
  // Until the second leaves the first has nothing to say; the second's going is what ends it.
  EXPECT_FALSE(first->news().done);
  second->leave();
  EXPECT_TRUE(wait_for(*second, done).done);
  EXPECT_TRUE(wait_for(*first, done).done);
}

TEST_F(NodeGroupTest, NodeRankGivenTwiceIsRefused) {
  auto first = start(1);
  ASSERT_TRUE(store_->try_get("launch/node/1", absl::Seconds(50)).ok());
  auto second = start(1);
  const absl::Status status = wait_for(*second, joined).joined->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("node rank 1"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("host1"), absl::string_view::npos) << status;
}

TEST_F(NodeGroupTest, NodesThatDoNotComeAreNamed) {
  auto first = start(0, 3, absl::Milliseconds(1));
  const absl::Status status = wait_for(*first, joined).joined->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("node rank 1, 2"), absl::string_view::npos) << status;
}

TEST_F(NodeGroupTest, GarbageInTheStoreIsAnError) {
  auto first = start(0);
  store_->set("launch/node/1", std::string("\xff\0\n\n\n\n", 6));
  EXPECT_EQ(wait_for(*first, joined).joined->status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeGroupTest, EndingWhileNodesAreMissingJoinsTheThread) {
  auto first = start(0);
  first.reset();
}

TEST(NodeWire, RecordsComeBack) {
  const NodeRecord record{.node = {"host", "role", 4}, .run_id = "run"};
  absl::StatusOr<NodeRecord> back = decode_node(encode_node(record));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->node, record.node);
  EXPECT_EQ(back->run_id, "run");
}

TEST(NodeWire, HostileValuesAreRefused) {
  for (const char* value : {"", "h\nr\n4", "h\nr\n0\nrun", "h\nr\n-4\nrun", "h\nr\n9999999\nrun",
                            "h\nr\n4\n../../etc", "h\nr\n4\n..", "h\nr\n4\n", "h\nr\n4\nrun\nmore"}) {
    EXPECT_FALSE(decode_node(value).ok()) << value;
  }
  for (const char* value : {"", "3", "0\nx", "256\nx", "x\nx", "3\nx\ny"})
    EXPECT_FALSE(decode_failure(value).ok()) << value;
}

TEST(NodeWire, ControlCharactersDoNotReachTheTerminal) {
  EXPECT_EQ(decode_failure("3\n\x1b[2Jx")->description, "?[2Jx");
  EXPECT_EQ(decode_failure(encode_failure({.exit_code = 3, .description = "a\nb"}))->description, "a?b");
}

}  // namespace
}  // namespace gradwire::tools
