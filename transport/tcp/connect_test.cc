// Tests how a tcp transport connects and listens.

#include <sys/socket.h>

#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// The address belongs to a listening socket with a full backlog, so there is no answer.
TEST(TcpConnect, ConnectionWithoutAnAnswerFailsAfterTheTimeout) {
  Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve_bind_addresses("127.0.0.1", 0)->front();
  ASSERT_EQ(::bind(listening.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listening.get(), 0), 0);
  ASSERT_EQ(::getsockname(listening.get(), address.get(), &address.length), 0);
  std::vector<Descriptor> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::connect(fillers.back().get(), address.get(), address.length);
  }
  auto client = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  absl::Time before = Clock::system().now();
  auto connection = client->connect(to_string(address), listener, absl::Milliseconds(200));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE((*connection)->send(Message()).ok());
  absl::Status reason = listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("no answer in time"), std::string::npos) << reason;
  EXPECT_GE(Clock::system().now() - before, absl::Milliseconds(190));
  client->shutdown();
}

TEST(TcpConnect, TheNextCandidateIsTriedWhenOneRefuses) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  auto server = make_tcp_transport(options);
  auto server_listener = std::make_shared<RecordingListener>();
  auto listening = server->listen([&](const std::shared_ptr<Connection>&) { return server_listener; });
  ASSERT_TRUE(listening.ok());
  std::string nobody;
  {
    auto other = make_tcp_transport(options);
    nobody = *other->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  }
  auto client = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client->connect(nobody + "," + *listening, listener, absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(server_listener->wait_for_messages(1).size(), 1);
}

TEST(TcpListen, APortInUseIsUnavailableAndNamed) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  auto first = make_tcp_transport(options);
  auto refuse = [](const std::shared_ptr<Connection>&) { return nullptr; };
  std::string address = *first->listen(refuse);
  options.port = std::stoi(address.substr(address.rfind(':') + 1));
  auto second = make_tcp_transport(options);
  absl::Status status = second->listen(refuse).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  // An address may end in "@" and the network to which it belongs.
  EXPECT_NE(status.message().find(address.substr(0, address.find('@'))), std::string::npos) << status;
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status;
}

TEST(TcpSend, AMessageOverTheLimitsIsRefused) {
  TcpOptions options;
  options.limits.max_header_bytes = 10;
  auto transport = make_tcp_transport(options);
  auto listener = std::make_shared<RecordingListener>();
  std::string address = *transport->listen([&](const std::shared_ptr<Connection>&) { return listener; });
  auto connection = transport->connect(address, std::make_shared<RecordingListener>(), absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  Message message;
  message.header = "more than ten bytes";
  absl::Status status = (*connection)->send(std::move(message)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_header_bytes"), std::string::npos) << status;
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(listener->wait_for_messages(1).size(), 1);
}

}  // namespace
}  // namespace gradwire::transport
