// Tests that sockets that have not proved who they are do not keep an honest process out.

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/transport/tcp/hostile/hostile_fixture.h"
#include "gradwire/transport/tcp/secure/fake_credentials.h"

namespace gradwire::transport {
namespace {

using security::Credentials;

// As many sockets as the limit of descriptors allows, at most.
constexpr std::size_t kMaxSockets = 10'000;

class Crowd : public HostileTcp {
 protected:
  void SetUp() override {
    rlimit limit = {};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    before_ = limit;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kMaxSockets + 1'000);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    sockets_ = std::min<std::size_t>(kMaxSockets, limit.rlim_cur - 500);
    start(options());
  }
  void TearDown() override {
    crowd_.clear();
    HostileTcp::TearDown();
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }

  static TcpOptions options() {
    TcpOptions options = server_options();
    options.credentials = fake_credentials({.kind = Credentials::Kind::kToken, .has_stream = false});
    // Places become free only because of the rules, not because the time of the sockets is over.
    options.introduction_timeout = absl::Minutes(10);
    return options;
  }

  // Opens the sockets from these addresses, and sends a byte on each.
  void gather(const std::vector<const char*>& addresses) {
    for (std::size_t i = 0; i < sockets_; ++i) {
      crowd_.push_back(connect_silently(nullptr, addresses[i % addresses.size()]));
      ASSERT_TRUE(crowd_.back().valid());
      send_a_byte(i);
    }
  }
  // The next byte of a preface and a handshake. The server may have closed the socket.
  void send_a_byte(std::size_t index) {
    static const std::string bytes =
        Preface{.proof = Preface::Proof::kToken, .token = random_token()}.encode() +
        fake_greeting("right", {});
    sent_.resize(std::max(sent_.size(), index + 1));
    if (sent_[index] + 1 < bytes.size()) {
      (void)::send(crowd_[index].get(), &bytes[sent_[index]++], 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  rlimit before_ = {};
  std::size_t sockets_ = 0;
  std::vector<Descriptor> crowd_;
  std::vector<std::size_t> sent_;
};

TEST_F(Crowd, OfSilentSocketsFromOtherAddressesLetsAnHonestProcessIn) {
  gather({"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"});
  // The server has closed all sockets but the bound.
  EXPECT_LE(count_descriptors_down_to(static_cast<int>(sockets_) + 400), static_cast<int>(sockets_) + 400);
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < sockets_; ++i) send_a_byte(i);
    expect_still_serving(round, options());
  }
  EXPECT_EQ(listener_count(), 3u);
}

TEST_F(Crowd, OfSilentSocketsFromItsOwnAddressLetsAnHonestProcessIn) {
  gather({"127.0.0.1"});
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < sockets_; ++i) send_a_byte(i);
    expect_still_serving(round, options());
  }
  EXPECT_EQ(listener_count(), 3u);
}

TEST_F(Crowd, ManyHonestProcessesThatConnectAtOnceAllGetIn) {
  constexpr std::size_t kConnections = 400;
  auto client = make_tcp_transport(options());
  std::vector<std::shared_ptr<Connection>> connections;
  for (std::size_t i = 0; i < kConnections; ++i) {
    auto connection = client->connect(address_, std::make_shared<RecordingListener>(), absl::Seconds(60));
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_TRUE((*connection)->send({"hello", {}}).ok());
    connections.push_back(*connection);
  }
  for (std::size_t i = 0; i < kConnections; ++i) EXPECT_EQ(listener(i)->wait_for_messages(1).size(), 1u);
  client->shutdown();
}

}  // namespace
}  // namespace gradwire::transport
