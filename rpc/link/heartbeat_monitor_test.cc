#include "gradwire/rpc/link/heartbeat_monitor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/core/observers.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/testing/ignoring_sink.h"
#include "gradwire/rpc/transfers/transfer_watch.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kSilent = 7;

// A thread that reads the connections, and stands still while `blocked`.
class FakeReader {
 public:
  bool run_after_reading(absl::AnyInvocable<void()> task) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(fails_, false)) throw std::bad_alloc();
      if (blocked_) {
        waiting_.push_back(std::move(task));
        ++asked_;
        return true;
      }
    }
    task();
    MutexLock lock(mutex_);
    ++asked_;
    return true;
  }
  void block() {
    MutexLock lock(mutex_);
    blocked_ = true;
  }
  // The next task is refused with an exception.
  void fail_once() {
    MutexLock lock(mutex_);
    fails_ = true;
  }
  void go_on() {
    std::vector<absl::AnyInvocable<void()>> tasks;
    {
      MutexLock lock(mutex_);
      blocked_ = false;
      tasks.swap(waiting_);
    }
    for (auto& task : tasks) task();
  }
  // Number of tasks so far: those that have run, and those that wait.
  int asked() {
    MutexLock lock(mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  bool fails_ ABSL_GUARDED_BY(mutex_) = false;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::AnyInvocable<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

class VerdictSink : public testing::IgnoringSink {
 public:
  void on_worker_state(const Worker&, WorkerState state) override {
    if (state == WorkerState::kSuspect) ++suspicions;
  }
  void on_unresponsive(const Worker&, const absl::Status&) override { ++accusations; }

  std::atomic<int> suspicions{0};
  std::atomic<int> accusations{0};
};

class FilledTable : public PeerTable {
 public:
  FilledTable() { fill({"self", 0, 1}, {address({"self", 0, 1}), address({"silent", 1, kSilent})}, {}); }

 private:
  static WorkerAddress address(const Worker& worker) { return {worker, proto::WorkerRecord()}; }
};

class NoLinks : public Link::Host, public HeartbeatMonitor::Host {
 public:
  absl::Status on_made(const std::shared_ptr<Link>&) override { return absl::OkStatus(); }
  void wait_for_group(const std::shared_ptr<Link>&) override {}
  void on_open(const Link&, const std::shared_ptr<Peer>&, bool) override {}
  void on_closed(const std::shared_ptr<Link>&, const std::shared_ptr<Peer>&, const absl::Status&) override {}
  std::vector<std::shared_ptr<Link>> links() const override {
    if (fails.exchange(false)) throw std::bad_alloc();
    return {};
  }
  void probe_soon(const std::shared_ptr<Peer>&) override {}
  void lose(const std::shared_ptr<Peer>&, WorkerState, absl::Status) override {}

  // Whether the next call of links() throws.
  mutable std::atomic<bool> fails{false};
};

class HeartbeatMonitorTest : public ::testing::Test {
 protected:
  HeartbeatMonitorTest() {
    monitor_.notice(*table_.peer(kSilent), &FailureDetector::attempted, absl::OkStatus());
  }
  ~HeartbeatMonitorTest() override {
    monitor_.end();
    timers_.shutdown();
  }
  // Lets the time pass in steps of the interval, each with its tick.
  void pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += options_.interval) {
      const int asked = reader_.asked();
      clock_.advance(options_.interval);
      ASSERT_TRUE(eventually([&] { return reader_.asked() > asked; }));
    }
  }
  // As pass(), while no tick comes.
  void pass_blocked(absl::Duration duration) {
    reader_.block();
    const int asked = reader_.asked();
    for (absl::Duration passed; passed < duration; passed += options_.interval) {
      clock_.advance(options_.interval);
      ASSERT_TRUE(eventually([&] { return reader_.asked() == asked + 1; }));
    }
    // Neither another tick nor another report is scheduled.
    ASSERT_TRUE(eventually([&] { return timers_.size() == 0; }));
  }

  const HeartbeatOptions options_;
  const Worker self_{"self", 0, 1};
  ManualClock clock_;
  TimerQueue timers_{clock_};
  VerdictSink sink_;
  NoLinks host_;
  FilledTable table_;
  FakeReader reader_;
  Link::Context context_{self_,
                         table_,
                         sink_,
                         host_,
                         timers_,
                         Limits(),
                         std::make_shared<Observers>(),
                         std::make_shared<TransferWatch>(timers_, TransferWatch::Options())};
  HeartbeatMonitor monitor_{
      context_, host_, options_,
      [this](absl::AnyInvocable<void()> task) { return reader_.run_after_reading(std::move(task)); },
      [] { return std::string("thread 4711 handles an answer"); }};
};

TEST_F(HeartbeatMonitorTest, TickThatThrowsIsNotTheLast) {
  pass(options_.interval);
  host_.fails = true;
  pass(options_.interval);
  EXPECT_FALSE(host_.fails);
  pass(options_.suspect_after + options_.interval);
  EXPECT_TRUE(eventually([&] { return sink_.suspicions == 1; }));
}

TEST_F(HeartbeatMonitorTest, TickThatCannotBeAskedForIsAskedForAgain) {
  pass(options_.interval);
  reader_.fail_once();
  EXPECT_TRUE(eventually([&] {
    clock_.advance(options_.interval);
    return sink_.suspicions == 1;
  }));
}

TEST_F(HeartbeatMonitorTest, SilentWorkerIsSuspectedAndAccused) {
  pass(options_.suspect_after + options_.interval);
  EXPECT_TRUE(eventually([&] { return sink_.suspicions == 1; }));
  EXPECT_EQ(sink_.accusations, 0);
  pass(options_.dead_after);
  EXPECT_TRUE(eventually([&] { return sink_.accusations > 0; }));
}

TEST_F(HeartbeatMonitorTest, WorkerThatDoesNotReadAccusesNobody) {
  pass(options_.interval);
  pass_blocked(3 * options_.dead_after);
  EXPECT_EQ(sink_.suspicions + sink_.accusations, 0);
  reader_.go_on();
  EXPECT_EQ(sink_.suspicions + sink_.accusations, 0);
  // Real silence counts from there on, and that before the standstill counts with it.
  pass(options_.dead_after - 3 * options_.interval);
  EXPECT_EQ(sink_.accusations, 0);
  pass(5 * options_.interval);
  EXPECT_TRUE(eventually([&] { return sink_.accusations > 0; }));
}

TEST_F(HeartbeatMonitorTest, StandstillIsReportedOnceAndSoIsItsEnd) {
  ::testing::internal::CaptureStderr();
  pass_blocked(10 * options_.interval);
  reader_.go_on();
  pass(3 * options_.interval);
  pass_blocked(10 * options_.interval);
  monitor_.end();
  timers_.shutdown();
  const std::vector<std::string> lines = captured_lines("has read no message for");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("worker \"self\""), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("thread 4711 handles an answer"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace gradwire::rpc
