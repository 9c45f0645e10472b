// Connections that are led to a port of another kind: each end has the right token, or a certificate of the
// job.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire {
namespace {

using transport::RecordingListener;

class Purposes : public ::testing::TestWithParam<Protection> {
 protected:
  transport::TcpOptions options(const std::string& purpose) const {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.credentials = *security::make_credentials(member(GetParam()));
    options.purpose = purpose;
    return options;
  }
};

TEST_P(Purposes, StoreClientIsRefusedByAWorker) {
  for (const char* purpose : {"rpc", "group", "store/stripe"}) {
    auto worker = transport::make_tcp_transport(options(purpose));
    int accepted = 0;
    const auto address = worker->listen([&](const std::shared_ptr<transport::Connection>&) {
      ++accepted;
      return std::make_shared<RecordingListener>();
    });
    ASSERT_TRUE(address.ok()) << address.status();
    int port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(address->substr(address->rfind(':') + 1), &port));
    const auto refused = open_store(port, member(GetParam()), absl::Seconds(5));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
    worker->shutdown();
    EXPECT_EQ(accepted, 0);
  }
}

TEST_P(Purposes, WorkersAreRefusedByAStore) {
  store::TcpStore store("127.0.0.1", 0, {.is_master = true, .security = member(GetParam())});
  for (const char* purpose : {"rpc", "group", "", "store/stripe"}) {
    auto worker = transport::make_tcp_transport(options(purpose));
    const auto listener = std::make_shared<RecordingListener>();
    const auto connection =
        worker->connect(absl::StrCat("127.0.0.1:", store.port()), listener, absl::Seconds(20));
    ASSERT_TRUE(connection.ok()) << connection.status();
    (void)(*connection)->send({"first", {}});
    EXPECT_FALSE(listener->wait_closed().ok()) << purpose;
    EXPECT_EQ(listener->message_count(), 0u);
    worker->shutdown();
  }
  EXPECT_EQ(store.num_keys(), 0);
}

// Rank 0 of a process group, whose rank 1 has not come yet.
TEST_P(Purposes, WorkersAndStoreClientsAreRefusedByAProcessGroup) {
  const auto group_store = std::make_shared<store::HashStore>();
  collectives::cpu::WorldP2p::Options group;
  group.size = 2;
  group.store = group_store;
  group.transports = {"tcp"};
  group.credentials = *security::make_credentials(member(GetParam()));
  const auto rank = collectives::cpu::WorldP2p::create(std::move(group));
  ASSERT_TRUE(rank.ok()) << rank.status();
  // The line of a transport: "tcp ADDRESS\n".
  const std::string line = group_store->get("mesh/rank/0");
  const std::string all_addresses = line.substr(4, line.size() - 5);
  const std::string address = absl::StrCat("127.0.0.1", all_addresses.substr(all_addresses.rfind(':')));
  // With the secret of the group: a connection for the right purpose is welcome.
  const std::string hello =
      collectives::cpu::encode_frame({.kind = collectives::cpu::FrameKind::kHello, .tag = 1, .size = 2}) +
      group_store->get("mesh/token");
  for (const char* purpose : {"rpc", "store", "", "group/stripe"}) {
    auto worker = transport::make_tcp_transport(options(purpose));
    const auto listener = std::make_shared<RecordingListener>();
    const auto connection = worker->connect(address, listener, absl::Seconds(20));
    ASSERT_TRUE(connection.ok()) << connection.status();
    (void)(*connection)->send({hello, {}});
    EXPECT_FALSE(listener->wait_closed().ok()) << purpose;
    EXPECT_EQ(listener->message_count(), 0u);
    worker->shutdown();
  }
  auto other_rank = transport::make_tcp_transport(options("group"));
  const auto listener = std::make_shared<RecordingListener>();
  const auto connection = other_rank->connect(address, listener, absl::Seconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  (void)(*connection)->send({hello, {}});
  EXPECT_EQ(listener->wait_for_messages(1).size(), 1u);
  other_rank->shutdown();
}

INSTANTIATE_TEST_SUITE_P(All, Purposes, ::testing::Values(Protection::kToken, Protection::kCertificates),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace gradwire
