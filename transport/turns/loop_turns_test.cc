// How an event loop, its acceptor and its timers share rounds. The clock moves only when a unit of work has
// been done, and the test drives the loop round by round.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/transport/acceptor.h"
#include "gradwire/transport/event_loop.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kWorkUnit = absl::Microseconds(10);
// Units of work in one round. The time begins with the first question, which follows the first unit.
const int kUnitsInRound = Turns::kRound / kWorkUnit + 1;

class LoopTurns : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create(clock_);
    ASSERT_TRUE(loop_->try_enter());
  }
  void TearDown() override {
    loop_->leave();
    end(*loop_);
  }

  ManualClock clock_;
  std::shared_ptr<EventLoop> loop_;
};

class Ringing : public EventHandler {
 public:
  explicit Ringing(std::function<void()> action) : action_(std::move(action)) {}
  void on_events_in_loop(uint32_t) override { action_(); }
  void failed_in_loop(const absl::Status& error) override { ADD_FAILURE() << error; }

 private:
  const std::function<void()> action_;
};

TEST_F(LoopTurns, EventsAreServedBeforeDeferredWorkAndOneDeferredTaskRunsInASpentRound) {
  std::string ran;
  std::function<void(char)> serve = [&](char peer) {
    do {
      ran += peer;
      clock_.advance(kWorkUnit);
    } while (!loop_->turns_in_loop().spent());
    loop_->turns_in_loop().defer([&serve, peer] { serve(peer); });
  };
  for (const char peer : std::string("ab")) loop_->turns_in_loop().defer([&serve, peer] { serve(peer); });
  Descriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const auto handler = std::make_shared<Ringing>([&] { ran += '!'; });
  const uint64_t id = *loop_->add_in_loop(event.get(), handler, /*both_ways=*/false);
  EXPECT_EQ(loop_->poll(), Poller::kWork);
  EXPECT_EQ(ran, std::string(kUnitsInRound, 'a'));
  ran.clear();
  const uint64_t one = 1;
  ASSERT_EQ(::write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  EXPECT_NE(loop_->poll(), Poller::kNothing);
  EXPECT_EQ(ran, "!" + std::string(kUnitsInRound, 'b'));
  loop_->remove_in_loop(event.get(), id);
  loop_->turns_in_loop().clear();
}

TEST_F(LoopTurns, TimersThatAreDueAtTheSameTimeAreSpreadOverRounds) {
  int ran = 0;
  const absl::Time due = Clock::system().now();
  for (int i = 0; i < 3 * kUnitsInRound; ++i) {
    loop_->schedule_in_loop(due, [&] {
      ++ran;
      clock_.advance(kWorkUnit);
    });
  }
  for (int round = 1; round <= 3; ++round) {
    EXPECT_NE(loop_->poll(), Poller::kNothing);
    EXPECT_EQ(ran, round * kUnitsInRound);
  }
  EXPECT_EQ(loop_->poll(), Poller::kNothing);
}

TEST_F(LoopTurns, DeferredTasksRunThoughTheirDriverLeaves) {
  bool ran = false;
  loop_->turns_in_loop().defer([&] { ran = true; });
  loop_->leave();
  // The sleeping thread is woken for it, and drives.
  loop_->sleep(absl::InfiniteDuration());
  ASSERT_TRUE(loop_->try_enter());
  loop_->poll();
  EXPECT_TRUE(ran);
}

TEST_F(LoopTurns, TheEndOfALoopDropsDeferredTasks) {
  const auto owned = std::make_shared<int>(0);
  loop_->turns_in_loop().defer([owned] {});
  loop_->turns_in_loop().begin_round();
  // A task that runs in the last round defers another one.
  loop_->turns_in_loop().defer([this, owned] { loop_->turns_in_loop().defer([owned] {}); });
  loop_->end_in_loop();
  loop_->poll();
  EXPECT_TRUE(loop_->ended());
  EXPECT_EQ(owned.use_count(), 1);
}

// A listening socket whose backlog has connections.
struct Backlog {
  explicit Backlog(int connections)
      : listening(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listening.get(), connections), 0);
    EXPECT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    for (int i = 0; i < connections; ++i) {
      clients.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(clients.back().get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    }
  }

  Descriptor listening;
  std::vector<Descriptor> clients;
};

TEST_F(LoopTurns, AnAcceptorTakesAsManyConnectionsAsFitIntoARound) {
  const int kConnections = 3 * kUnitsInRound + 1;
  Backlog backlog(kConnections);
  int accepted = 0;
  const auto acceptor = std::make_shared<Acceptor>(loop_, std::move(backlog.listening),
                                                   [&](Descriptor, const sockaddr_storage&, socklen_t) {
                                                     ++accepted;
                                                     clock_.advance(kWorkUnit);
                                                   });
  acceptor->start_in_loop();
  // The first round takes its time for the event, and one more connection for the deferred task.
  loop_->poll();
  EXPECT_EQ(accepted, kUnitsInRound + 1);
  for (int before = accepted; accepted < kConnections; before = accepted) {
    loop_->poll();
    EXPECT_LE(accepted - before, kUnitsInRound);
    ASSERT_GT(accepted, before);
  }
  acceptor->stop_in_loop();
}

// epoll does not report the connections behind it again.
TEST_F(LoopTurns, AConnectionWhoseHandlingThrowsLaterDoesNotHoldUpOthers) {
  const int kConnections = 2 * kUnitsInRound;
  Backlog backlog(kConnections);
  int accepted = 0;
  const auto acceptor = std::make_shared<Acceptor>(loop_, std::move(backlog.listening),
                                                   [&](Descriptor, const sockaddr_storage&, socklen_t) {
                                                     clock_.advance(kWorkUnit);
                                                     // In the deferred task.
                                                     if (++accepted == kUnitsInRound + 1)
                                                       throw std::bad_alloc();
                                                   });
  acceptor->start_in_loop();
  EXPECT_TRUE(eventually([&] {
    loop_->poll();
    return accepted == kConnections;
  }));
  acceptor->stop_in_loop();
}

}  // namespace
}  // namespace gradwire::transport
