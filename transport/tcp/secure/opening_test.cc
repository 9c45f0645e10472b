#include "gradwire/transport/tcp/secure/opening.h"

#include <sys/socket.h>

#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

class LoopOfThisThread : public ::testing::Test {
 protected:
  ~LoopOfThisThread() override {
    loop_->leave();
    end(*loop_);
  }

  ManualClock clock_;
  std::shared_ptr<EventLoop> loop_ = *EventLoop::create(clock_);
};

using TcpOpeningSteps = LoopOfThisThread;

TEST_F(TcpOpeningSteps, ExceptionEndsTheOpening) {
  const Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve_bind_addresses("127.0.0.1", 0)->front();
  ASSERT_EQ(::bind(listening.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listening.get(), 1), 0);
  ASSERT_EQ(::getsockname(listening.get(), address.get(), &address.length), 0);
  ASSERT_TRUE(loop_->try_enter());
  const auto opening = std::make_shared<TcpOpening>(
      *loop_, TcpOpening::Options{.peer = "peer",
                                  .addresses = {address},
                                  .credentials = security::no_credentials(),
                                  .facts = {},
                                  .preface = "",
                                  .prepare = [](int) -> absl::Status { throw std::bad_alloc(); }});
  std::optional<absl::Status> ended;
  opening->start_in_loop(Clock::system().now() + absl::Seconds(60),
                         [&](const absl::StatusOr<SecuredSocket>& socket) { ended = socket.status(); });
  EXPECT_TRUE(eventually([&] {
    loop_->poll();
    return ended.has_value();
  }));
  EXPECT_EQ(ended->code(), absl::StatusCode::kResourceExhausted) << *ended;
}

class ThrowingHandshake : public security::SocketHandshake {
 public:
  absl::StatusOr<Progress> step() override { throw std::bad_alloc(); }
  const security::PeerIdentity& peer() const override { return peer_; }
  std::shared_ptr<security::SecureStream> take_stream() override { return nullptr; }

 private:
  security::PeerIdentity peer_;
};

using TcpHandshakeSteps = LoopOfThisThread;

TEST_F(TcpHandshakeSteps, ExceptionInALaterRoundEndsTheHandshake) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor peer(ends[1]);
  const auto handshake =
      std::make_shared<TcpHandshake>(*loop_, Descriptor(ends[0]), std::make_unique<ThrowingHandshake>());
  ASSERT_TRUE(loop_->try_enter());
  // The time of this round is over.
  loop_->turns_in_loop().begin_round();
  (void)loop_->turns_in_loop().now();
  clock_.advance(Turns::kRound);
  std::optional<absl::Status> ended;
  handshake->start_in_loop(Clock::system().now() + absl::Seconds(60),
                           [&](const absl::Status& status, const SecuredSocket& socket) {
                             EXPECT_TRUE(socket.socket.valid());
                             ended = status;
                           });
  EXPECT_FALSE(ended.has_value());
  loop_->poll();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->code(), absl::StatusCode::kResourceExhausted) << *ended;
}

}  // namespace
}  // namespace gradwire::transport
