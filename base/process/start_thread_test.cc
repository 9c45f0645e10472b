#include "gradwire/base/process/start_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <string>

#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/failing_threads.h"

namespace gradwire {
namespace {

TEST(StartThread, RunsTheFunctionOnAThreadOfThatName) {
  std::string name;
  absl::StatusOr<std::thread> thread = start_thread("a-name-that-is-too-long", [&name] {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
  });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_EQ(name, "a-name-that-is-");
}

TEST(StartThread, WithoutThreadsNamesTheLimitAndDropsTheFunction) {
  const auto owned = std::make_shared<int>(0);
  std::atomic<bool> ran{false};
  const FailingThreads none;
  const absl::StatusOr<std::thread> thread = start_thread("unlucky", [owned, &ran] { ran = true; });
  EXPECT_TRUE(is_local_shortage(thread.status())) << thread.status();
  EXPECT_NE(thread.status().message().find("cannot start the thread \"unlucky\""), std::string::npos);
  EXPECT_NE(thread.status().message().find("RLIMIT_NPROC"), std::string::npos) << thread.status();
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(ran);
}

struct Starter {
  Starter() : thread(value_or_throw(start_thread("starter", [] {}))) {}
  ~Starter() { thread.join(); }
  std::thread thread;
};

TEST(StartThread, ObjectWithThreadsIsMadeOrItsErrorReturned) {
  EXPECT_TRUE(make_with_threads<Starter>().ok());
  const FailingThreads none;
  const absl::Status refused = make_with_threads<Starter>().status();
  EXPECT_TRUE(is_local_shortage(refused)) << refused;
}

}  // namespace
}  // namespace gradwire
