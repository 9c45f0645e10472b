#include "gradwire/rpc/link/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/testing/ignoring_sink.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/tcp_transport.h"

// The choice of transports and connections between workers.
namespace gradwire::rpc {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

// A transport that never works: connect() fails, or each connection ends as soon as it is made.
class BrokenTransport : public transport::Transport {
 public:
  enum class Fails { kAtOnce, kLater, kRefused, kShortageAtOnce, kShortageLater };
  BrokenTransport(Fails fails, std::shared_ptr<transport::EventLoop> loop)
      : fails_(fails), loop_(std::move(loop)) {}

  std::string name() const override { return "broken"; }
  absl::StatusOr<std::string> listen(AcceptHandler) override { return std::string("nowhere"); }
  absl::StatusOr<std::shared_ptr<transport::Connection>> connect(
      const std::string&, std::shared_ptr<transport::ConnectionListener> listener, absl::Duration) override {
    attempts_.fetch_add(1);
    if (fails_ == Fails::kAtOnce) return absl::UnavailableError("the transport does not work");
    const absl::Status shortage = system_status("cannot connect", EMFILE);
    if (fails_ == Fails::kShortageAtOnce) return shortage;
    auto connection = std::make_shared<Ended>();
    const absl::Status reason = fails_ == Fails::kRefused ? transport::refused_error("connection refused")
                                : fails_ == Fails::kShortageLater
                                    ? shortage
                                    : absl::UnavailableError("the connection broke");
    loop_->post([connection, listener, reason] { listener->on_closed(*connection, reason); });
    return connection;
  }
  void shutdown() override {}

  int attempts() const { return attempts_.load(); }

 private:
  class Ended : public transport::Connection {
    absl::StatusOr<uint64_t> send(transport::Message) override { return 1; }
    void capture(uint64_t) override {}
    bool borrows(uint64_t) override { return false; }
    void close(absl::Status, absl::Duration) override {}
    std::string peer_address() const override { return "nowhere"; }
  };
  const Fails fails_;
  const std::shared_ptr<transport::EventLoop> loop_;
  std::atomic<int> attempts_{0};
};

class RecordingSink : public testing::IgnoringSink {
 public:
  void on_request(const Worker& from, const std::shared_ptr<Link>&, EnvelopePtr envelope,
                  std::vector<transport::Buffer>) override {
    MutexLock lock(mutex_);
    requests_.push_back({from.name, (*envelope)->request().call_id()});
    changed_.notify_all();
  }
  void on_worker_state(const Worker&, WorkerState state) override {
    MutexLock lock(mutex_);
    if (state == WorkerState::kSuspect) suspected_ = true;
    changed_.notify_all();
  }
  void on_worker_lost(const Worker&, WorkerState, const absl::Status&) override {
    MutexLock lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

  bool wait_until_lost(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(mutex_);
    while (!lost_ && absl::Now() < deadline) changed_.wait_for(mutex_, deadline - absl::Now());
    return lost_;
  }
  bool suspected() {
    MutexLock lock(mutex_);
    return suspected_;
  }

  // Waits for a request with this id. Returns false if the peer is lost or the wait takes too long.
  bool has_request(uint64_t id) {
    const absl::Time deadline = absl::Now() + kTimeout;
    MutexLock lock(mutex_);
    while (true) {
      for (const auto& request : requests_) {
        if (request.second == id) return true;
      }
      if (lost_ || absl::Now() > deadline) return false;
      changed_.wait_for(mutex_, absl::Milliseconds(100));
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::string, uint64_t>> requests_ ABSL_GUARDED_BY(mutex_);
  bool suspected_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

struct Side {
  Side(Worker self, std::vector<std::unique_ptr<transport::Transport>> transports,
       Clock& clock = Clock::system())
      : worker(std::move(self)),
        timers(clock),
        peers(std::move(transports), sink, timers, Peers::Options()) {}
  // A timer may be connecting to a peer, and uses `peers`.
  ~Side() { timers.shutdown(); }
  Worker worker;
  RecordingSink sink;
  TimerQueue timers;
  Peers peers;
};

// Makes the two workers the members of one group.
void form_group(Side& caller, Side& callee) {
  const auto caller_record = caller.peers.listen(caller.worker);
  const auto callee_record = callee.peers.listen(callee.worker);
  ASSERT_TRUE(caller_record.ok() && callee_record.ok());
  const std::vector<WorkerAddress> workers = {{caller.worker, *caller_record},
                                              {callee.worker, *callee_record}};
  caller.peers.set_workers(caller.worker, workers, {});
  callee.peers.set_workers(callee.worker, workers, {});
}

class FallBack : public ::testing::TestWithParam<BrokenTransport::Fails> {};

TEST_P(FallBack, NextTransportTakesOver) {
  ::testing::internal::CaptureStderr();
  auto loop = *transport::EventLoop::create();
  std::vector<std::unique_ptr<transport::Transport>> of_caller;
  of_caller.push_back(std::make_unique<BrokenTransport>(GetParam(), loop));
  of_caller.push_back(transport::make_tcp_transport());
  std::vector<std::unique_ptr<transport::Transport>> of_callee;
  of_callee.push_back(std::make_unique<BrokenTransport>(GetParam(), loop));
  of_callee.push_back(transport::make_tcp_transport());
  Side caller({"caller", 0, 11}, std::move(of_caller));
  Side callee({"callee", 1, 22}, std::move(of_callee));
  ASSERT_NO_FATAL_FAILURE(form_group(caller, callee));

  const std::shared_ptr<Peer> peer = *caller.peers.find("callee", -1);
  uint64_t id = 0;
  // A message on the broken link would be lost. Wait for a link over the other transport, and send on that.
  const absl::Time deadline = absl::Now() + kTimeout;
  while (absl::Now() < deadline) {
    auto link = caller.peers.link_to(peer);
    ASSERT_TRUE(link.ok()) << link.status();
    if (loop->try_enter()) {
      loop->poll();
      loop->leave();
    }
    auto next_link = caller.peers.link_to(peer);
    ASSERT_TRUE(next_link.ok()) << next_link.status();
    if (GetParam() == BrokenTransport::Fails::kAtOnce || *next_link != *link) {
      proto::Envelope envelope;
      envelope.mutable_request()->set_call_id(++id);
      ASSERT_TRUE((*next_link)->send(envelope, {}).ok());
      break;
    }
  }
  EXPECT_GT(id, 0u);
  EXPECT_TRUE(callee.sink.has_request(id));
  EXPECT_TRUE(caller.peers.status(callee.worker).ok());
  // A request of the callee arrives after its Hello.
  auto back = callee.peers.link_to(*callee.peers.find("caller", -1));
  ASSERT_TRUE(back.ok()) << back.status();
  proto::Envelope envelope;
  envelope.mutable_request()->set_call_id(77);
  ASSERT_TRUE((*back)->send(envelope, {}).ok());
  EXPECT_TRUE(caller.sink.has_request(77));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::HasSubstr("worker \"caller\" no longer uses the transport \"broken\" to worker \"callee\""));
  caller.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
  callee.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
}

INSTANTIATE_TEST_SUITE_P(Peers, FallBack,
                         ::testing::Values(BrokenTransport::Fails::kAtOnce, BrokenTransport::Fails::kLater));

TEST(Peers, WorkerThatHasLeftButKeepsItsConnectionIsLostAfterAWhile) {
  ManualClock clock;
  std::vector<std::unique_ptr<transport::Transport>> of_caller;
  of_caller.push_back(transport::make_tcp_transport());
  std::vector<std::unique_ptr<transport::Transport>> of_callee;
  of_callee.push_back(transport::make_tcp_transport());
  Side caller({"caller", 0, 11}, std::move(of_caller), clock);
  Side callee({"callee", 1, 22}, std::move(of_callee));
  ASSERT_NO_FATAL_FAILURE(form_group(caller, callee));
  // The request of the callee arrives behind its Hello.
  const auto link = callee.peers.link_to(*callee.peers.find("caller", -1));
  ASSERT_TRUE(link.ok()) << link.status();
  proto::Envelope envelope;
  envelope.mutable_request()->set_call_id(1);
  ASSERT_TRUE((*link)->send(envelope, {}).ok());
  ASSERT_TRUE(caller.sink.has_request(1));

  caller.peers.lose(callee.worker, WorkerState::kLeft, absl::UnavailableError("it has left"));
  EXPECT_FALSE(caller.peers.status(callee.worker).ok());
  clock.advance(absl::Seconds(4));
  envelope.mutable_request()->set_call_id(2);
  ASSERT_TRUE((*link)->send(envelope, {}).ok());
  EXPECT_TRUE(caller.sink.has_request(2));
  clock.advance(absl::Seconds(2));
  EXPECT_TRUE(caller.sink.wait_until_lost(kTimeout));
  // The caller ends the connection.
  EXPECT_TRUE(eventually([&] { return (*link)->closed(); }));
  caller.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
  callee.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
}

TEST(Peers, WorkerThatHasEndedCausesNoWarningAboutTransports) {
  ::testing::internal::CaptureStderr();
  auto loop = *transport::EventLoop::create();
  std::vector<std::unique_ptr<transport::Transport>> of_caller;
  of_caller.push_back(std::make_unique<BrokenTransport>(BrokenTransport::Fails::kAtOnce, loop));
  of_caller.push_back(transport::make_tcp_transport());
  std::vector<std::unique_ptr<transport::Transport>> of_callee;
  of_callee.push_back(std::make_unique<BrokenTransport>(BrokenTransport::Fails::kAtOnce, loop));
  of_callee.push_back(transport::make_tcp_transport());
  Side caller({"caller", 0, 11}, std::move(of_caller));
  Side callee({"callee", 1, 22}, std::move(of_callee));
  const auto caller_record = caller.peers.listen(caller.worker);
  const auto callee_record = callee.peers.listen(callee.worker);
  ASSERT_TRUE(caller_record.ok() && callee_record.ok());
  caller.peers.set_workers(caller.worker, {{caller.worker, *caller_record}, {callee.worker, *callee_record}},
                           {});
  callee.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
  // No transport reaches the callee now.
  (void)caller.peers.link_to(*caller.peers.find("callee", -1));
  EXPECT_TRUE(caller.sink.wait_until_lost(kTimeout));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::Not(::testing::HasSubstr("no longer uses the transport")));
  caller.peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
}

// A worker that was never reached before, and cannot be.
class Unreached : public ::testing::Test {
 protected:
  void start(BrokenTransport::Fails fails, bool tcp_too = false) {
    ASSERT_TRUE(thread_.provide(loop_, {}).ok());
    auto transport = std::make_unique<BrokenTransport>(fails, loop_);
    transport_ = transport.get();
    std::vector<std::unique_ptr<transport::Transport>> transports;
    transports.push_back(std::move(transport));
    if (tcp_too) transports.push_back(transport::make_tcp_transport());
    caller_ = std::make_unique<Side>(Worker{"caller", 0, 11}, std::move(transports));
  }
  void TearDown() override {
    caller_->peers.shutdown(absl::CancelledError("done"), absl::Seconds(5));
    thread_.end();
  }

  // `network`: the worker's network; nullptr for the caller's own.
  void call(const char* network) {
    const auto own = caller_->peers.listen(caller_->worker);
    ASSERT_TRUE(own.ok());
    proto::WorkerRecord record = *own;
    record.set_name(callee_.name);
    record.set_id(callee_.id);
    record.set_incarnation(callee_.incarnation);
    if (network != nullptr) record.set_network(network);
    caller_->peers.set_workers(caller_->worker, {{caller_->worker, *own}, {callee_, record}}, {});
    first_ = caller_->peers.link_to(peer()).status();
  }
  std::shared_ptr<Peer> peer() { return *caller_->peers.find("callee", -1); }
  // Waits until so many connections were attempted. Returns false if the worker is lost before.
  bool wait_for_attempts(int attempts) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (transport_->attempts() < attempts && absl::Now() < deadline) {
      if (caller_->sink.wait_until_lost(absl::Milliseconds(1))) return false;
    }
    return transport_->attempts() >= attempts;
  }

  const Worker callee_{"callee", 1, 22};
  std::shared_ptr<transport::EventLoop> loop_;
  transport::LoopThread thread_;
  BrokenTransport* transport_ = nullptr;
  std::unique_ptr<Side> caller_;
  // The status of the first attempt.
  absl::Status first_;
};

class Refused : public Unreached {
 protected:
  void SetUp() override { start(BrokenTransport::Fails::kRefused); }
};

TEST_F(Refused, InTheSameNetworkItIsDead) {
  call(nullptr);
  EXPECT_TRUE(caller_->sink.wait_until_lost(kTimeout));
}

// Example: a container whose port is not published. Other workers may reach it.
class RefusedElsewhere : public Refused, public ::testing::WithParamInterface<const char*> {};

TEST_P(RefusedElsewhere, ItIsSuspectAndTriedAgain) {
  call(GetParam());
  EXPECT_TRUE(wait_for_attempts(5));
  EXPECT_TRUE(caller_->sink.suspected());
  EXPECT_TRUE(caller_->peers.status(callee_).ok());
}

INSTANTIATE_TEST_SUITE_P(Peers, RefusedElsewhere, ::testing::Values("another-host-1", /*unknown*/ ""));

// The calling worker has no descriptor left.
class Shortage : public Unreached, public ::testing::WithParamInterface<BrokenTransport::Fails> {};

TEST_P(Shortage, NobodyIsSuspectedAndTheAttemptIsRepeated) {
  start(GetParam());
  call(nullptr);
  if (GetParam() == BrokenTransport::Fails::kShortageAtOnce) {
    EXPECT_EQ(first_.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(first_.message()), ::testing::HasSubstr("RLIMIT_NOFILE"));
    // A call does not start the detector if it cannot even attempt to connect.
    for (int i = 0; i < 4; ++i) EXPECT_FALSE(caller_->peers.link_to(peer()).ok());
  }
  EXPECT_TRUE(wait_for_attempts(5));
  EXPECT_FALSE(caller_->sink.suspected());
  EXPECT_TRUE(caller_->peers.status(callee_).ok());
}

TEST_P(Shortage, NoTransportIsGivenUp) {
  start(GetParam(), /*tcp_too=*/true);
  call(nullptr);
  EXPECT_TRUE(first_.ok()) << first_;
  if (GetParam() == BrokenTransport::Fails::kShortageLater) EXPECT_TRUE(wait_for_attempts(3));
  EXPECT_FALSE(peer()->has_given_up("broken"));
  EXPECT_FALSE(caller_->sink.suspected());
}

INSTANTIATE_TEST_SUITE_P(Peers, Shortage,
                         ::testing::Values(BrokenTransport::Fails::kShortageAtOnce,
                                           BrokenTransport::Fails::kShortageLater));

}  // namespace
}  // namespace gradwire::rpc
