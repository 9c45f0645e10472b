// Tests of the sessions of a TcpStore's server, over a transport with a short introduction timeout.

#include "gradwire/store/tcp/tcp_store_sessions.h"

#include <memory>

#include "gradwire/base/error.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using transport::RecordingListener;

TEST(TcpStoreSessions, SilentConnectionEndsAndAClientsDoesNot) {
  auto loop = value_or_throw(StoreLoop::create("sessions"));
  auto sessions = std::make_shared<TcpStoreSessions>(loop->loop(), /*number=*/5, std::size_t{1} << 20);
  transport::TcpOptions options;
  options.bind_address = "127.0.0.1";
  options.introduction_timeout = absl::Milliseconds(50);
  auto server = transport::make_tcp_transport(options, loop->loop());
  const std::string address =
      value_or_throw(server->listen([&](const std::shared_ptr<transport::Connection>& connection) {
        return sessions->accept_in_loop(connection);
      }));

  auto client = transport::make_tcp_transport();
  auto greeted = std::make_shared<RecordingListener>(), silent = std::make_shared<RecordingListener>();
  auto greeted_connection = value_or_throw(client->connect(address, greeted, absl::Seconds(30)));
  proto::Request hello;
  hello.set_id(1);
  hello.mutable_hello()->set_magic(kStoreMagic);
  hello.mutable_hello()->set_version(kStoreVersion);
  hello.mutable_hello()->set_client(7);
  ASSERT_TRUE(greeted_connection->send({hello.SerializeAsString(), {}}).ok());
  ASSERT_EQ(greeted->wait_for_messages(1).size(), 1u);
  // The silent connection is made later. When it has been closed, the first one has passed the check too.
  auto silent_connection = value_or_throw(client->connect(address, silent, absl::Seconds(30)));
  EXPECT_EQ(silent->wait_closed().code(), absl::StatusCode::kUnavailable);

  proto::Request set;
  set.set_id(2);
  set.mutable_set()->set_key("key");
  ASSERT_TRUE(greeted_connection->send({set.SerializeAsString(), {}}).ok());
  EXPECT_EQ(greeted->wait_for_messages(2).size(), 2u);
  EXPECT_EQ(greeted->closed_count(), 0);

  client->shutdown();
  loop->loop()->post([&] { sessions->stop_in_loop(absl::ZeroDuration(), nullptr); });
  server->shutdown();
}

}  // namespace
}  // namespace gradwire::store
