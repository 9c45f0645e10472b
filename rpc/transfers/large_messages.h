#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/testing/ignoring_sink.h"
#include "gradwire/rpc/transfers/transfer_watch.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/transport.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {

// More than a socket or a ring holds.
inline constexpr std::size_t kLargeBytes = std::size_t{64} << 20;

// Creates the transport of a worker.
using MakeTransport =
    std::function<std::unique_ptr<transport::Transport>(std::shared_ptr<transport::EventLoop>)>;

// Counts the messages that a worker receives.
class TransferSink : public testing::IgnoringSink {
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
struct TransferSide {
  TransferSide(Worker self, const MakeTransport& make)
      : worker(std::move(self)),
        loop(*transport::EventLoop::create()),
        watch(std::make_shared<TransferWatch>(
            timers,
            TransferWatch::Options{.self = worker.name, .over = uint64_t{1} << 20, .output = &shown})),
        peers(transports(make(loop)), sink, timers,
              // No heartbeats: the clock runs faster than messages arrive.
              {.heartbeat = {.interval = absl::Hours(100),
                             .suspect_after = absl::Hours(300),
                             .dead_after = absl::Hours(400)},
               .transfers = watch}) {
    EXPECT_TRUE(thread.start(loop, WaitPolicy()).ok());
  }
  ~TransferSide() {
    peers.shutdown(absl::CancelledError("the test ends"), absl::ZeroDuration());
    loop->post([this] { loop->end_in_loop(); });
    thread.join();
  }

  static std::vector<std::unique_ptr<transport::Transport>> transports(
      std::unique_ptr<transport::Transport> transport) {
    std::vector<std::unique_ptr<transport::Transport>> list;
    list.push_back(std::move(transport));
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

  // Lets time pass until no message is watched. Other lines may come before the last one.
  bool pass_until_ended() {
    return eventually([&] {
      clock.advance(absl::Seconds(1));
      return watch->size() == 0;
    });
  }

  const Worker worker;
  ManualClock clock;
  RecordedProgress shown;
  TimerQueue timers{clock};
  TransferSink sink;
  std::shared_ptr<transport::EventLoop> loop;
  transport::LoopThread thread;
  std::shared_ptr<TransferWatch> watch;
  Peers peers;
};

// Two workers with a link between them.
class TwoTransferSides {
 public:
  explicit TwoTransferSides(const MakeTransport& make) : a{{"a", 0, 11}, make}, b{{"b", 1, 22}, make} {}

  // Connects them. Afterwards both have received a message.
  void connect() {
    const auto record_a = a.peers.listen(a.worker);
    const auto record_b = b.peers.listen(b.worker);
    ASSERT_TRUE(record_a.ok() && record_b.ok());
    const std::vector<WorkerAddress> workers = {{a.worker, *record_a}, {b.worker, *record_b}};
    a.peers.set_workers(a.worker, workers, {});
    b.peers.set_workers(b.worker, workers, {});
    const auto link = a.peers.link_to(*a.peers.find("b", -1));
    ASSERT_TRUE(link.ok()) << link.status();
    link_to_b = *link;
    // Afterwards both have introduced themselves.
    proto::Envelope small;
    small.mutable_request()->set_function("small");
    ASSERT_TRUE(link_to_b->send(small, {}).ok());
    ASSERT_TRUE(b.sink.wait_for_messages(1));
    proto::Envelope answer;
    answer.mutable_response();
    ASSERT_TRUE(b.sink.last_link()->send(answer, {}).ok());
    ASSERT_TRUE(a.sink.wait_for_messages(1));
  }

  // Sends the message while the loop of `from` stands still, so that only a part of it can leave, and checks
  // what both ends say about it before and after its end.
  static void expect_lines(TransferSide& from, TransferSide& to, LinkSender& link,
                           const proto::Envelope& envelope, const proto::Request* answered,
                           const std::string& what) {
    std::promise<void> go_on = from.stop_loop();
    auto bytes = std::make_shared<std::vector<char>>(kLargeBytes);
    ASSERT_TRUE(link.send(envelope, {transport::Buffer(bytes->data(), kLargeBytes, bytes)}, answered).ok());
    EXPECT_EQ(from.watch->size(), 1);
    EXPECT_TRUE(eventually([&] { return to.watch->size() == 1; }));
    EXPECT_TRUE(from.pass_until_lines(1));
    EXPECT_TRUE(to.pass_until_lines(1));
    go_on.set_value();
    EXPECT_TRUE(to.sink.wait_for_messages(2));
    EXPECT_TRUE(from.pass_until_ended());
    EXPECT_TRUE(to.pass_until_ended());
    const std::string to_worker = what + " to worker \"" + to.worker.name + "\": ";
    const std::string from_worker = what + " from worker \"" + from.worker.name + "\": ";
    const std::string sender = "worker \"" + from.worker.name + "\" ";
    const std::string receiver = "worker \"" + to.worker.name + "\" ";
    EXPECT_THAT(from.shown.texts().front(),
                ::testing::AllOf(::testing::StartsWith(sender + "is sending " + to_worker),
                                 ::testing::HasSubstr(" of 64.0 MiB, ")));
    EXPECT_THAT(to.shown.texts().front(),
                ::testing::AllOf(::testing::StartsWith(receiver + "is receiving " + from_worker),
                                 ::testing::HasSubstr(" of 64.0 MiB, ")));
    EXPECT_THAT(from.shown.texts().back(),
                ::testing::StartsWith(sender + "has sent " + to_worker + "64.0 MiB, "));
    EXPECT_THAT(to.shown.texts().back(),
                ::testing::StartsWith(receiver + "has received " + from_worker + "64.0 MiB, "));
    // A part has been sent, and not more than was received.
    const ProgressState sent = from.shown.states().front();
    EXPECT_GT(*sent.done, 0);
    EXPECT_LT(*sent.done, *sent.total);
    const ProgressState received = to.shown.states().front();
    EXPECT_GT(*received.done, 0);
    EXPECT_LT(*received.done, *received.total);
    EXPECT_EQ(*received.total, *sent.total);
  }

  TransferSide a, b;
  // The end of the link that "a" has.
  std::shared_ptr<Link> link_to_b;
};

}  // namespace gradwire::rpc
