#include "gradwire/transport/send_batch.h"

#include <thread>

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

struct CountingMember : SendBatch::Member {
  void flush_batch() override { ++flushes; }
  int flushes = 0;
};

TEST(SendBatch, MembersAreFlushedOnceAtTheEnd) {
  auto one = std::make_shared<CountingMember>();
  auto other = std::make_shared<CountingMember>();
  {
    SendBatch batch;
    ASSERT_EQ(SendBatch::current(), &batch);
    for (int i = 0; i < 10; ++i) batch.add(one);
    batch.add(other);
    EXPECT_EQ(one->flushes, 0);
  }
  EXPECT_EQ(one->flushes, 1);
  EXPECT_EQ(other->flushes, 1);
  EXPECT_EQ(SendBatch::current(), nullptr);
}

TEST(SendBatch, OnlyTheOutermostBatchHasAnEffect) {
  auto member = std::make_shared<CountingMember>();
  SendBatch outer(SendBatch::Scope::kBrief);
  {
    SendBatch inner;
    EXPECT_EQ(SendBatch::current(), &outer);
    EXPECT_EQ(SendBatch::current()->scope(), SendBatch::Scope::kBrief);
    SendBatch::current()->add(member);
  }
  EXPECT_EQ(member->flushes, 0);
  SendBatch::flush();
  EXPECT_EQ(member->flushes, 1);
  SendBatch::flush();
  EXPECT_EQ(member->flushes, 1);
}

TEST(SendBatch, OtherThreadsHaveTheirOwnBatch) {
  SendBatch batch;
  std::thread([] { EXPECT_EQ(SendBatch::current(), nullptr); }).join();
}

TEST(SendBatch, MessagesSentDuringAFlushAreFlushedToo) {
  struct Sender : SendBatch::Member {
    void flush_batch() override {
      if (++flushes == 1) SendBatch::current()->add(self.lock());
    }
    std::weak_ptr<Sender> self;
    int flushes = 0;
  };
  auto member = std::make_shared<Sender>();
  member->self = member;
  {
    SendBatch batch;
    batch.add(member);
  }
  EXPECT_EQ(member->flushes, 2);
}

}  // namespace
}  // namespace gradwire::transport
