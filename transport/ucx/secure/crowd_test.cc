// Processes that connect over UCX at the same time take turns. The clock moves only when a connection has
// been accepted, and the test drives the loop of the accepting end round by round.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/turns/turns.h"
#include "gradwire/transport/ucx/secure/raw_peer.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kUnit = absl::Microseconds(10);
// Connections that are accepted in one round.
const int kUnits = Turns::kRound / kUnit + 1;
const int kPeers = 4 * kUnits;

TEST(UcxCrowd, PeersThatProveWhoTheyAreTakeTurns) {
  const auto token =
      *security::make_token_credentials(security::Secret("a token of the job, of 32 bytes at least"), true);
  ManualClock clock;
  const std::shared_ptr<EventLoop> loop = *EventLoop::create(clock);
  UcxOptions options;
  options.credentials = token;
  options.purpose = "test";
  options.own_name = "worker";
  options.bind_address = "127.0.0.1";
  const std::unique_ptr<Transport> server = make_ucx_transport(options, loop);
  int accepted = 0;
  const auto address = server->listen([&](const std::shared_ptr<Connection>&) {
    ++accepted;
    clock.advance(kUnit);
    return std::make_shared<RecordingListener>();
  });
  ASSERT_TRUE(address.ok()) << address.status();
  ASSERT_TRUE(loop->try_enter());
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    RawPeer& peer = *peers.emplace_back(RawPeer::connect(*address));
    peer.set_meanwhile([&] { loop->poll(); });
    const auto handshake = token->for_messages(peer.channel(), {.purpose = "test", .own_name = "peer"});
    peer.send_record(handshake->start().send);
    auto challenge = peer.receive();
    ASSERT_TRUE(challenge.has_value());
    peer.send_record(handshake->receive(challenge->data).send);
    const auto welcome = peer.receive();
    ASSERT_TRUE(welcome.has_value());
    ASSERT_TRUE(handshake->receive(welcome->data).done);
  }
  EXPECT_EQ(accepted, 0);
  // The last message of each peer arrives before the accepting end polls again.
  for (const std::unique_ptr<RawPeer>& peer : peers) {
    peer->set_meanwhile(nullptr);
    peer->send(UcxHead{UcxHead::Kind::kHello, 0, 0, 0});
    peer->flush();
  }
  const absl::Time deadline = Clock::system().now() + kTestTimeout;
  for (int before = 0; accepted < kPeers && Clock::system().now() < deadline; before = accepted) {
    loop->poll();
    EXPECT_LE(accepted - before, kUnits + 1);
  }
  EXPECT_EQ(accepted, kPeers);
  peers.clear();
  loop->leave();
  server->shutdown();
  end(*loop);
}

}  // namespace
}  // namespace gradwire::transport
