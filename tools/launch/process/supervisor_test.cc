#include "gradwire/tools/launch/process/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/process/process_reaper.h"

namespace gradwire::tools {
namespace {

class Supervising : public ::testing::Test {
 protected:
  Supervising() : reaper_(*ProcessReaper::start()), loop_(*FdLoop::create()) {}

  void start_supervisor(absl::Duration grace_period = absl::Seconds(60)) {
    supervisor_.emplace(
        Supervisor::HostInfo{.loop = loop_, .clock = Clock::system(), .reaper = reaper_}, grace_period,
        Supervisor::Callbacks{
            .print = [this](const std::string& line) { logged_ += line + "\n"; },
            .failed = [this](const Worker& worker) { failed_.push_back(worker.place().rank); }});
  }

  Worker worker(int rank, const std::string& script, int stdout_fd = -1) {
    WorkerStart start{.command = {.path = "/bin/sh", .argv = {"sh", "-c", script}},
                      .environment = {"PATH=/usr/bin:/bin"},
                      .stdout_fd = stdout_fd};
    sigemptyset(&start.signal_mask);
    absl::StatusOr<Worker> worker =
        Worker::start(reaper_, {.rank = rank, .world_size = 2, .role = "r"}, start);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }

  void run() {
    while (!supervisor_->advance()) loop_.run_once(supervisor_->next_wait());
  }

  // Waits until a worker has written a byte, which shows that it has reached the point that the test needs.
  static void await(const Descriptor& pipe) {
    char byte;
    ASSERT_EQ(read_retrying(pipe.get(), &byte, 1), 1);
  }
  static bool at_end(const Descriptor& pipe) {
    char byte;
    return read_retrying(pipe.get(), &byte, 1) == 0;
  }

  ProcessReaper reaper_;
  FdLoop loop_;
  std::optional<Supervisor> supervisor_;
  std::string logged_;
  std::vector<int> failed_;
};

TEST_F(Supervising, WorkersThatEndWellSucceed) {
  start_supervisor();
  ASSERT_TRUE(supervisor_->add(worker(0, "exit 0")).ok());
  ASSERT_TRUE(supervisor_->add(worker(1, "exit 0")).ok());
  run();
  EXPECT_TRUE(supervisor_->succeeded());
  EXPECT_TRUE(supervisor_->failures().empty());
  EXPECT_TRUE(failed_.empty());
}

TEST_F(Supervising, FirstFailureEndsTheOthersAndIsReported) {
  start_supervisor();
  ASSERT_TRUE(supervisor_->add(worker(0, "exec sleep 1000")).ok());
  ASSERT_TRUE(supervisor_->add(worker(1, "exit 9")).ok());
  run();
  EXPECT_FALSE(supervisor_->succeeded());
  EXPECT_EQ(failed_, std::vector<int>{1});
  // A worker that was ended by the launcher did not fail.
  ASSERT_EQ(supervisor_->failures().size(), 1u);
  EXPECT_EQ(supervisor_->failures()[0]->ending().exit_code(), 9);
}

TEST_F(Supervising, AFailureAfterTheFirstIsKept) {
  start_supervisor();
  Pipe pipe = *make_pipe();
  ASSERT_TRUE(
      supervisor_
          ->add(worker(0, "trap 'exit 7' TERM; echo; while :; do sleep 0.05; done", pipe.write_end.get()))
          .ok());
  await(pipe.read_end);
  ASSERT_TRUE(supervisor_->add(worker(1, "kill -SEGV $$")).ok());
  run();
  EXPECT_EQ(failed_, std::vector<int>{1});
  ASSERT_EQ(supervisor_->failures().size(), 2u);
  EXPECT_EQ(supervisor_->failures()[0]->ending().exit_code(), 128 + SIGSEGV);
  EXPECT_EQ(supervisor_->failures()[1]->ending().exit_code(), 7);
}

TEST_F(Supervising, WorkerThatIgnoresTheRequestIsKilledAfterTheGracePeriod) {
  start_supervisor(absl::Milliseconds(100));
  Pipe pipe = *make_pipe();
  ASSERT_TRUE(
      supervisor_->add(worker(0, "trap '' TERM; echo; while :; do sleep 1000; done", pipe.write_end.get()))
          .ok());
  await(pipe.read_end);
  supervisor_->end();
  run();
  EXPECT_TRUE(supervisor_->failures().empty());
  EXPECT_NE(logged_.find("1 workers did not end within 100ms"), std::string::npos) << logged_;
  pipe.write_end.reset();
  EXPECT_TRUE(at_end(pipe.read_end));
}

TEST_F(Supervising, StoppedWorkerIsEndedToo) {
  start_supervisor();
  Pipe pipe = *make_pipe();
  Worker stopped = worker(0, "(kill -STOP $$; echo) & wait", pipe.write_end.get());
  await(pipe.read_end);
  ASSERT_TRUE(supervisor_->add(std::move(stopped)).ok());
  supervisor_->on_signal(SIGTERM);
  run();
  EXPECT_FALSE(supervisor_->succeeded());
  EXPECT_TRUE(supervisor_->failures().empty());
}

TEST_F(Supervising, ProcessesThatAWorkerLeavesBehindAreEnded) {
  start_supervisor();
  Pipe pipe = *make_pipe();
  ASSERT_TRUE(supervisor_->add(worker(0, "sleep 1000 & echo", pipe.write_end.get())).ok());
  run();
  EXPECT_TRUE(supervisor_->succeeded());
  pipe.write_end.reset();
  await(pipe.read_end);
  EXPECT_TRUE(at_end(pipe.read_end));
}

TEST_F(Supervising, WorkersThatEndWellAfterASignalSucceed) {
  start_supervisor();
  Pipe pipe = *make_pipe();
  ASSERT_TRUE(
      supervisor_
          ->add(worker(0, "trap 'exit 0' INT; echo; while :; do sleep 0.1; done", pipe.write_end.get()))
          .ok());
  await(pipe.read_end);
  supervisor_->on_signal(SIGINT);
  run();
  EXPECT_TRUE(supervisor_->succeeded());
  EXPECT_NE(logged_.find("SIGINT"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::tools
