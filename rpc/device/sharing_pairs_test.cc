#include <gtest/gtest.h>

#include "gradwire/rpc/device/sharing.h"

namespace gradwire::rpc {
namespace {

using Use = SharingPairs::Use;

TEST(SharingPairs, AreProbedOnce) {
  SharingPairs pairs;
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kProbe);
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kNo);
  // Another device, and another worker.
  EXPECT_EQ(pairs.ask(1, "cuda:1"), Use::kProbe);
  EXPECT_EQ(pairs.ask(2, "cuda:0"), Use::kProbe);
  pairs.succeed(1, "cuda:0");
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kYes);
  EXPECT_TRUE(pairs.fail(2, "cuda:0"));
  EXPECT_FALSE(pairs.fail(2, "cuda:0"));
  EXPECT_EQ(pairs.ask(2, "cuda:0"), Use::kNo);
  // A failure is final.
  pairs.succeed(2, "cuda:0");
  EXPECT_EQ(pairs.ask(2, "cuda:0"), Use::kNo);
}

TEST(SharingPairs, AnInterruptedProbeIsRepeatedAFewTimes) {
  SharingPairs pairs;
  for (int i = 0; i < SharingPairs::kMaxInterrupted; ++i) {
    EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kProbe);
    EXPECT_FALSE(pairs.interrupt(1, "cuda:0"));
  }
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kProbe);
  EXPECT_TRUE(pairs.interrupt(1, "cuda:0"));
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kNo);
}

TEST(SharingPairs, ForgetDropsTheWorker) {
  SharingPairs pairs;
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kProbe);
  pairs.forget(1);
  EXPECT_FALSE(pairs.interrupt(1, "cuda:0"));
  EXPECT_EQ(pairs.ask(1, "cuda:0"), Use::kProbe);
}

}  // namespace
}  // namespace gradwire::rpc
