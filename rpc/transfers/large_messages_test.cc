#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/transfers/transfer_watch.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/tcp/tcp_transport.h"

// How both ends of a connection report a large message on its way.
namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// More than a socket holds.
constexpr std::size_t kBytes = std::size_t{64} << 20;

class Sink : public Peers::Sink {
 public:
  void on_request(const Worker&, const std::shared_ptr<Link>& link, EnvelopePtr,
                  std::vector<transport::Buffer>) override {
    MutexLock lock(mutex_);
    last_link_ = link;
    ++messages_;
  }
  void on_response(const Worker&, EnvelopePtr, std::vector<transport::Buffer>) override {
    MutexLock lock(mutex_);
    ++messages_;
  }
  std::string callee_of(const Worker& peer, uint64_t call_id) override {
    return peer.name == "b" && call_id == 7 ? "train" : "";
  }
  void on_cancel(const Worker&, uint64_t, uint64_t) override {}
  void on_link_closed(const Worker&, const Link&, const absl::Status&) override {}
  void on_link_restored(const Worker&) override {}
  void on_settled(const Worker&) override {}
  void on_worker_state(const Worker&, WorkerState) override {}
  void on_unresponsive(const Worker&, const absl::Status&) override {}
  void on_worker_lost(const Worker&, WorkerState, const absl::Status&) override {}

  bool wait_for_messages(int count) {
    return eventually([&] {
      MutexLock lock(mutex_);
      return messages_ >= count;
    });
  }
  std::shared_ptr<Link> last_link() {
    MutexLock lock(mutex_);
    return last_link_;
  }

 private:
  Mutex mutex_;
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Link> last_link_ ABSL_GUARDED_BY(mutex_);
};

// A worker with a loop that the test can stop.
struct Side {
  explicit Side(Worker self)
      : worker(std::move(self)),
        loop(*transport::EventLoop::create()),
        watch(std::make_shared<TransferWatch>(
            timers,
            TransferWatch::Options{.self = worker.name, .over = uint64_t{1} << 20, .output = &shown})),
        peers(transports(loop), sink, timers,
              // No heartbeats: the clock runs faster than messages arrive.
              {.heartbeat = {.interval = absl::Hours(100),
                             .suspect_after = absl::Hours(300),
                             .dead_after = absl::Hours(400)},
               .transfers = watch}) {
    EXPECT_TRUE(thread.start(loop, WaitPolicy()).ok());
  }
  ~Side() {
    peers.shutdown(absl::CancelledError("the test ends"), absl::ZeroDuration());
    loop->post([this] { loop->end_in_loop(); });
    thread.join();
  }

  static std::vector<std::unique_ptr<transport::Transport>> transports(
      const std::shared_ptr<transport::EventLoop>& loop) {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    std::vector<std::unique_ptr<transport::Transport>> list;
    list.push_back(transport::make_tcp_transport(options, loop));
    return list;
  }

  // Stops the loop until the result is set.
  std::promise<void> stop_loop() {
    std::promise<void> go_on;
    auto stopped = std::make_shared<std::promise<void>>();
    std::future<void> is_stopped = stopped->get_future();
    loop->post([stopped, wait = go_on.get_future().share()] {
      stopped->set_value();
      wait.wait();
    });
    is_stopped.wait();
    return go_on;
  }
  // Lets time pass until so many different lines were written.
  bool pass_until_lines(std::size_t count) {
    return eventually([&] {
      clock.advance(absl::Seconds(1));
      return shown.texts().size() >= count;
    });
  }

  const Worker worker;
  ManualClock clock;
  RecordedProgress shown;
  TimerQueue timers{clock};
  Sink sink;
  std::shared_ptr<transport::EventLoop> loop;
  transport::LoopThread thread;
  std::shared_ptr<TransferWatch> watch;
  Peers peers;
};

class LargeMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto record_a = a_.peers.listen(a_.worker);
    const auto record_b = b_.peers.listen(b_.worker);
    ASSERT_TRUE(record_a.ok() && record_b.ok());
    const std::vector<WorkerAddress> workers = {{a_.worker, *record_a}, {b_.worker, *record_b}};
    a_.peers.set_workers(a_.worker, workers, {});
    b_.peers.set_workers(b_.worker, workers, {});
    const auto link = a_.peers.link_to(*a_.peers.find("b", -1));
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *link;
    // Afterwards both have introduced themselves.
    proto::Envelope small;
    small.mutable_request()->set_function("small");
    ASSERT_TRUE(link_->send(small, {}).ok());
    ASSERT_TRUE(b_.sink.wait_for_messages(1));
    proto::Envelope answer;
    answer.mutable_response();
    ASSERT_TRUE(b_.sink.last_link()->send(answer, {}).ok());
    ASSERT_TRUE(a_.sink.wait_for_messages(1));
  }

  // Sends the message while the loop of `from` stands still, so that only a part of it can leave, and checks
  // what both ends say about it before and after its end.
  static void expect_lines(Side& from, Side& to, LinkSender& link, const proto::Envelope& envelope,
                           const proto::Request* answered, const std::string& what) {
    std::promise<void> go_on = from.stop_loop();
    auto bytes = std::make_shared<std::vector<char>>(kBytes);
    ASSERT_TRUE(link.send(envelope, {transport::Buffer(bytes->data(), kBytes, bytes)}, answered).ok());
    EXPECT_EQ(from.watch->size(), 1);
    EXPECT_TRUE(eventually([&] { return to.watch->size() == 1; }));
    EXPECT_TRUE(from.pass_until_lines(1));
    EXPECT_TRUE(to.pass_until_lines(1));
    go_on.set_value();
    EXPECT_TRUE(to.sink.wait_for_messages(2));
    // Other lines may come before the last one.
    const auto ended = [](Side& side) {
      return eventually([&] {
        side.clock.advance(absl::Seconds(1));
        return side.watch->size() == 0;
      });
    };
    EXPECT_TRUE(ended(from));
    EXPECT_TRUE(ended(to));
    const std::string to_worker = what + " to worker \"" + to.worker.name + "\": ";
    const std::string from_worker = what + " from worker \"" + from.worker.name + "\": ";
    const std::string sender = "worker \"" + from.worker.name + "\" ";
    const std::string receiver = "worker \"" + to.worker.name + "\" ";
    EXPECT_THAT(from.shown.texts().front(),
                AllOf(StartsWith(sender + "is sending " + to_worker), HasSubstr(" MiB of 64.0 MiB, ")));
    EXPECT_THAT(to.shown.texts().front(),
                AllOf(StartsWith(receiver + "is receiving " + from_worker), HasSubstr(" MiB of 64.0 MiB, ")));
    EXPECT_THAT(from.shown.texts().back(), StartsWith(sender + "has sent " + to_worker + "64.0 MiB, "));
    EXPECT_THAT(to.shown.texts().back(), StartsWith(receiver + "has received " + from_worker + "64.0 MiB, "));
    // A part has been sent, and not more than was received.
    const ProgressState sent = from.shown.states().front();
    EXPECT_GT(*sent.done, 0);
    EXPECT_LT(*sent.done, *sent.total);
    const ProgressState received = to.shown.states().front();
    EXPECT_GT(*received.done, 0);
    EXPECT_LT(*received.done, *received.total);
    EXPECT_EQ(*received.total, *sent.total);
  }

  Side a_{{"a", 0, 11}};
  Side b_{{"b", 1, 22}};
  std::shared_ptr<Link> link_;
};

TEST_F(LargeMessages, BothEndsSayHowACallGoes) {
  proto::Envelope envelope;
  envelope.mutable_request()->set_function("train");
  expect_lines(a_, b_, *link_, envelope, nullptr, "the call of \"train\"");
}

TEST_F(LargeMessages, BothEndsNameTheFunctionOfAnAnswer) {
  proto::Request request;
  request.set_function("train");
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(7);
  expect_lines(b_, a_, *b_.sink.last_link(), envelope, &request, "the answer of \"train\"");
}

TEST_F(LargeMessages, AConnectionThatEndsIsReported) {
  std::promise<void> go_on = a_.stop_loop();
  proto::Envelope envelope;
  envelope.mutable_request()->set_function("train");
  auto bytes = std::make_shared<std::vector<char>>(kBytes);
  ASSERT_TRUE(link_->send(envelope, {transport::Buffer(bytes->data(), kBytes, bytes)}).ok());
  EXPECT_TRUE(eventually([&] { return b_.watch->size() == 1; }));
  EXPECT_TRUE(b_.pass_until_lines(1));
  b_.sink.last_link()->part("", absl::CancelledError("the test ends it"), absl::ZeroDuration());
  EXPECT_TRUE(eventually([&] {
    b_.clock.advance(absl::Seconds(1));
    return b_.watch->size() == 0;
  }));
  EXPECT_THAT(b_.shown.texts().back(),
              AllOf(StartsWith("worker \"b\" has not received the call of \"train\" from worker \"a\" "
                               "completely: the connection ended after "),
                    HasSubstr(" of 64.0 MiB")));
  go_on.set_value();
}

}  // namespace
}  // namespace gradwire::rpc
