#include "gradwire/rpc/agent/shared_end.h"

#include <gtest/gtest.h>

#include <thread>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"

namespace gradwire::rpc {
namespace {

absl::Status never_runs() {
  ADD_FAILURE() << "the end ran twice";
  return absl::OkStatus();
}

TEST(SharedEnd, ThoseWhoComeBeforeItIsOverGetItsStatus) {
  SharedEnd end;
  const absl::Status failure = absl::DeadlineExceededError("worker \"b\" did not come");
  const Promise<void> gate;
  const Promise<void> begun;
  absl::Status results[3];
  std::thread first([&] {
    results[0] = end.run([&] {
      begun.set_value();
      gate.future().wait();
      return failure;
    });
  });
  begun.future().wait();
  std::thread second([&] { results[1] = end.run(never_runs); });
  std::thread third([&] { results[2] = end.run(never_runs); });
  EXPECT_TRUE(eventually([&] { return end.waiting() == 2; }));
  gate.set_value();
  first.join();
  second.join();
  third.join();
  for (const absl::Status& result : results) EXPECT_EQ(result, failure);
}

TEST(SharedEnd, ThoseWhoComeAfterwardsGetOk) {
  SharedEnd end;
  const absl::Status failure = absl::UnavailableError("worker \"b\" has died");
  EXPECT_EQ(end.run([&] { return failure; }), failure);
  EXPECT_TRUE(end.run(never_runs).ok());
  EXPECT_EQ(end.waiting(), 0u);
}

}  // namespace
}  // namespace gradwire::rpc
