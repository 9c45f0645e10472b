#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/full_pipe.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/testing/blocked_workers.h"

// A worker whose thread that reads the connections stands still is the sick one. The others are healthy.
namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

int64_t increased(int64_t x) { return x + 1; }
GRADWIRE_RPC(increased)

TEST(BlockedLoop, ItsWorkerIsDeclaredDeadAndNotTheHealthyOnes) {
  testing::BlockedWorkers workers;
  ::testing::internal::CaptureStderr();
  absl::Notification end;
  ASSERT_TRUE(workers.loop(1).post([&end] { end.WaitForNotification(); }));
  EXPECT_TRUE(eventually([&] {
    return workers[0].worker_state("worker1") == WorkerState::kDead &&
           workers[2].worker_state("worker1") == WorkerState::kDead;
  }));
  const auto expect_healthy = [&] {
    EXPECT_EQ(workers[0].worker_state("worker2"), WorkerState::kAlive);
    EXPECT_EQ(workers[2].worker_state("worker0"), WorkerState::kAlive);
    EXPECT_TRUE(workers.call(0, 2));
    EXPECT_TRUE(workers.call(2, 0));
  };
  expect_healthy();
  end.Notify();
  // The sick worker is informed when it reads again.
  EXPECT_TRUE(eventually([&] { return absl::IsAborted(status_of([&] { workers.call(1, 0); })); }));
  expect_healthy();
  EXPECT_THAT(captured_lines("has read no message for"),
              ElementsAre(AllOf(HasSubstr("worker \"worker1\""),
                                HasSubstr("handles a task that another thread has posted"))));
}

// Code of the program that blocks never blocks the thread that reads the connections.

void block() { testing::BlockedWorkers::block(); }

struct SlowToDecode {
  int64_t number = 0;
};
struct SlowToDestroy {
  explicit SlowToDestroy(int64_t start) : number(start) {}
  SlowToDestroy(SlowToDestroy&& other) noexcept : number(std::exchange(other.number, 0)) {}
  ~SlowToDestroy() {
    if (number != 0) block();
  }
  int64_t number;
};

}  // namespace

template <>
struct Codec<SlowToDecode> {
  static std::string type_name() { return "SlowToDecode"; }
  static absl::Status encode(const SlowToDecode& value, Encoder&, proto::Value& out) {
    out.set_integer(value.number);
    return absl::OkStatus();
  }
  static absl::StatusOr<SlowToDecode> decode(const proto::Value& in, Decoder&) {
    block();
    return SlowToDecode{in.integer()};
  }
};

namespace {

SlowToDecode slow_to_decode() { return {7}; }
GRADWIRE_RPC(slow_to_decode)
GRADWIRE_RPC_CLASS(SlowToDestroy, int64_t)
// Set while a handler waits for its cancellation.
std::atomic<bool>& can_be_cancelled() {
  static std::atomic<bool> value{false};
  return value;
}
Future<void> wait_for_cancellation() {
  const Promise<void> cancelled;
  CallContext::current()->cancellation().on_cancelled([cancelled] {
    block();
    cancelled.set_value();
  });
  can_be_cancelled() = true;
  return cancelled.future();
}
GRADWIRE_RPC(wait_for_cancellation)

// Observes the calls of the threads that say so, and blocks at the end of a call.
class SlowProfiler final : public CallProfiler {
 public:
  static inline thread_local bool observes = false;

  bool active() const override { return observes; }
  std::unique_ptr<ProfiledCall> begin_call(const CallLabel& /*call*/) override {
    return std::make_unique<Call>();
  }
  std::unique_ptr<ProfiledHandler> begin_handler(const CallLabel& /*call*/, bool /*collect*/) override {
    return nullptr;
  }

 private:
  class Call : public ProfiledCall {
   public:
    bool wants_events() const override { return false; }
    void end(const Events& /*events*/) override { block(); }
  };
};
[[maybe_unused]] const bool profiler_is_set = [] {
  static SlowProfiler profiler;
  set_call_profiler(&profiler);
  return true;
}();

// While it exists, standard error is a pipe that is full. What waits in the pipe is dropped.
class FullStandardError {
 public:
  FullStandardError() : before_(dup(STDERR_FILENO)) { EXPECT_GE(dup2(pipe_.in(), STDERR_FILENO), 0); }
  ~FullStandardError() {
    pipe_.drain();
    LineOutput::standard_error().flush(absl::Seconds(60));
    EXPECT_GE(dup2(before_.get(), STDERR_FILENO), 0);
    EXPECT_THAT(pipe_.rest(), HasSubstr("a line of the loop"));
  }

 private:
  FullPipe pipe_;
  const Descriptor before_;
};

struct Means {
  const char* name;
  // Makes worker 1 block. What it returns is kept until the end of the block.
  std::function<std::shared_ptr<void>(testing::BlockedWorkers& workers)> start;
};
void PrintTo(const Means& means, std::ostream* out) { *out << means.name; }

class BlockedProgram : public ::testing::TestWithParam<Means> {};

TEST_P(BlockedProgram, DelaysNobodyAndIsAccusedByNobody) {
  testing::BlockedWorkers workers;
  workers.expect_nobody_waits([&] { return GetParam().start(workers); });
}

INSTANTIATE_TEST_SUITE_P(
    Of, BlockedProgram,
    ::testing::Values(Means{"Cancellation",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              can_be_cancelled() = false;
                              auto call = std::make_shared<Future<void>>(
                                  workers[0].rpc_async<&wait_for_cancellation>("worker1"));
                              EXPECT_TRUE(eventually([] { return can_be_cancelled().load(); }));
                              call->cancel();
                              return call;
                            }},
                      Means{"Continuation",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              return std::make_shared<Future<void>>(
                                  workers[1].rpc_async<&increased>("worker0", int64_t{1}).then([](int64_t) {
                                    block();
                                  }));
                            }},
                      Means{"DecodingOfAnAnswer",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              return std::make_shared<Future<int64_t>>(
                                  workers[1].rpc_async<&slow_to_decode>("worker0").then(
                                      [](const SlowToDecode& value) { return value.number; }));
                            }},
                      Means{"DestructorOfAnObject",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              // The last reference goes at once.
                              (void)workers[0].remote<SlowToDestroy>("worker1", int64_t{1});
                              return nullptr;
                            }},
                      Means{"DestructorOfACallback",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              auto object = std::make_shared<SlowToDestroy>(1);
                              (void)workers[1]
                                  .rpc_async<&increased>("worker0", int64_t{1})
                                  .then([object = std::move(object)](int64_t) {});
                              return nullptr;
                            }},
                      Means{"ObserverOfACall",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              SlowProfiler::observes = true;
                              auto call = std::make_shared<Future<int64_t>>(
                                  workers[1].rpc_async<&increased>("worker0", int64_t{1}));
                              SlowProfiler::observes = false;
                              return call;
                            }},
                      Means{"StandardErrorThatIsFull",
                            [](testing::BlockedWorkers& workers) -> std::shared_ptr<void> {
                              auto full = std::make_shared<FullStandardError>();
                              EXPECT_TRUE(workers.loop(1).post([] {
                                log(LogLevel::kError, "a line of the loop");
                                testing::BlockedWorkers::blocks();
                              }));
                              return full;
                            }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::rpc
