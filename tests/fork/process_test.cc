// fork() while other threads use what belongs to the process. Without agents and groups: see fork_test.cc.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/flight/flight_record_signal.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/file/file_table.h"

namespace gradwire {
namespace {

// Set when fork() begins. The handlers of the library run after this one.
std::atomic<bool> forking{false};
void await_fork() {
  while (!forking) ::sched_yield();
  // For a fork that does not wait.
  for (int i = 0; i < 10'000; ++i) ::sched_yield();
}

TEST(DescriptorInTheMaking, IsNotInAChildThatIsForkedWhileItIsMade) {
  ASSERT_EQ(::pthread_atfork([] { forking = true; }, nullptr, nullptr), 0);
  std::atomic<int> made{-1};
  std::thread maker([&] {
    const Descriptor descriptor = Descriptor::from([&] {
      made = ::eventfd(0, EFD_CLOEXEC);
      await_fork();
      return made.load();
    });
    while (made >= 0) ::sched_yield();
  });
  while (made < 0) ::sched_yield();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::fcntl(made, F_GETFD) < 0 ? 0 : 1);
  made = -1;
  maker.join();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TableOfAFileStore, WorksInAChildThatIsForkedWhileAThreadUsesIt) {
  store::FileTable table(absl::StrCat(::testing::TempDir(), "/table.", ::getpid()),
                         /*world_size=*/std::nullopt, Clock::system());
  ASSERT_TRUE(table.start(absl::InfiniteFuture()).ok());
  std::atomic<bool> used{false}, forked{false};
  std::thread user([&] {
    (void)table.poll(absl::InfiniteFuture(), [&](const store::StoreTable&) {
      used = true;
      while (!forked) ::sched_yield();
      return true;
    });
  });
  while (!used) ::sched_yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const absl::Status status =
        table.update(absl::InfiniteFuture(), [](const store::StoreTable&, store::FileTable::Append append) {
          return append(store::proto::FileRecord::SET, "key", "of the child");
        });
    ::_exit(status.ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  forked = true;
  user.join();
  EXPECT_TRUE(*table.poll(absl::InfiniteFuture(),
                          [](const store::StoreTable& table) { return table.find("key") != nullptr; }));
}

TEST(MutexOfTheProcess, IsFreeInAChild) {
  ASSERT_EQ(::pthread_atfork([] { forking = true; }, nullptr, nullptr), 0);
  ProcessMutex first, second;
  std::atomic<bool> held{false};
  // It holds one of them while it waits for the other.
  std::thread holder([&] {
    MutexLock outer(second);
    held = true;
    await_fork();
    MutexLock inner(first);
  });
  while (!held) ::sched_yield();
  const pid_t child = ::fork();
  if (child == 0) {
    if (!first.try_lock()) ::_exit(1);
    if (!second.try_lock()) ::_exit(1);
    ::_exit(0);
  }
  holder.join();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(FlightRecordSignal, WritesInAChildThatInstallsItAgain) {
  ASSERT_TRUE(install_flight_record_signal(SIGUSR2).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (!install_flight_record_signal(SIGUSR2).ok()) ::_exit(1);
    ::raise(SIGUSR2);
    while (flight_records_written() == 0) ::sched_yield();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gradwire
