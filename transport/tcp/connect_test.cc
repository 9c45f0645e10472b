// Tests how a tcp transport connects and listens.

#include <sys/socket.h>

#include <atomic>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/socket/address.h"
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

// A client whose lookups of names wait for the test. Every name is the loopback address, except that
// "elsewhere.example" is another host, and "unknown.example" is not found.
class TcpNames : public ::testing::Test {
 protected:
  TcpNames() {
    TcpOptions server;
    server.bind_address = "127.0.0.1";
    server_ = make_tcp_transport(server);
    address_ = *server_->listen([this](const std::shared_ptr<Connection>&) { return server_listener_; });
    port_ = address_.substr(address_.rfind(':') + 1);
    port_ = port_.substr(0, port_.find('@'));
    TcpOptions client;
    client.look_up = [names = names_](const std::string& host) -> absl::StatusOr<std::vector<SocketAddress>> {
      EXPECT_FALSE(on_duty());
      if (names->asked.fetch_add(1) == 0) names->begun.set_value();
      names->answered.wait();
      if (host == "unknown.example") return absl::UnavailableError("cannot look up the host: unknown");
      return host == "elsewhere.example" ? resolve_addresses("192.0.2.1:1")
                                         : resolve_addresses("127.0.0.1:1");
    };
    client_ = make_tcp_transport(client);
  }

  struct Names {
    std::promise<void> begun;
    std::promise<void> answer;
    std::shared_future<void> answered = answer.get_future().share();
    std::atomic<int> asked{0};
  };
  const std::shared_ptr<Names> names_ = std::make_shared<Names>();
  const std::shared_ptr<RecordingListener> server_listener_ = std::make_shared<RecordingListener>();
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::string address_;
  std::string port_;
};

TEST_F(TcpNames, SlowNameBlocksNoOtherConnection) {
  auto slow_listener = std::make_shared<RecordingListener>();
  absl::StatusOr<std::shared_ptr<Connection>> slow;
  {
    // connect() does not look up the name, also not on a thread that must not wait.
    const DutyScope duty;
    slow = client_->connect("slow.example:" + port_, slow_listener, absl::Seconds(60));
  }
  ASSERT_TRUE(slow.ok()) << slow.status();
  Message early;
  early.header = "early";
  ASSERT_TRUE((*slow)->send(std::move(early)).ok());
  names_->begun.get_future().wait();
  // The name is being looked up. Another connection is made and used meanwhile.
  auto listener = std::make_shared<RecordingListener>();
  auto other = client_->connect(address_, listener, absl::Seconds(60));
  ASSERT_TRUE(other.ok()) << other.status();
  Message message;
  message.header = "other";
  ASSERT_TRUE((*other)->send(std::move(message)).ok());
  EXPECT_EQ(server_listener_->wait_for_messages(1).at(0).header, "other");
  // The message that was sent before the name was known arrives after that.
  names_->answer.set_value();
  EXPECT_EQ(server_listener_->wait_for_messages(2).at(1).header, "early");
  EXPECT_EQ((*slow)->peer_address(), "slow.example:" + port_);
  client_->shutdown();
}

TEST_F(TcpNames, DeadlineEndsTheConnectionAndNamesTheHost) {
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client_->connect("slow.example:" + port_, listener, absl::Milliseconds(50));
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(listener->wait_closed(),
            unresolved_error("cannot look up the host \"slow.example\": no answer in time"));
  // The lookup still waits.
  client_->shutdown();
  names_->answer.set_value();
}

TEST_F(TcpNames, ShutdownWaitsForNoLookup) {
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client_->connect("slow.example:" + port_, listener, absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  names_->begun.get_future().wait();
  client_->shutdown();
  EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kCancelled);
  client_ = nullptr;
  connection = absl::CancelledError("");
  names_->answer.set_value();
}

TEST_F(TcpNames, ClosedConnectionIsNotMade) {
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client_->connect("slow.example:" + port_, listener, absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  names_->begun.get_future().wait();
  (*connection)->close(absl::AbortedError("changed its mind"));
  EXPECT_EQ(listener->wait_closed(), absl::AbortedError("changed its mind"));
  names_->answer.set_value();
  // A later connection arrives alone.
  auto later =
      client_->connect("fast.example:" + port_, std::make_shared<RecordingListener>(), absl::Seconds(60));
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_TRUE((*later)->send(Message()).ok());
  EXPECT_EQ(server_listener_->wait_for_messages(1).size(), 1u);
  client_->shutdown();
  server_->shutdown();
  EXPECT_EQ(server_listener_->closed_count(), 1);
}

TEST_F(TcpNames, NameThatIsNotFoundIsReportedByOnClosed) {
  names_->answer.set_value();
  auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(client_->connect("unknown.example:" + port_, listener, absl::Seconds(60)).ok());
  EXPECT_EQ(listener->wait_closed(), unresolved_error("cannot look up the host: unknown"));
}

TEST_F(TcpNames, NameOfAnotherHostIsNotAllowedWithoutCredentials) {
  names_->answer.set_value();
  auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(client_->connect("elsewhere.example:" + port_, listener, absl::Seconds(60)).ok());
  const absl::Status reason = listener->wait_closed();
  EXPECT_TRUE(absl::IsFailedPrecondition(reason)) << reason;
  EXPECT_NE(reason.message().find("elsewhere.example"), std::string::npos) << reason;
}

// The system's own lookup aborts on a thread on duty.
TEST(TcpConnect, NameOfThisHostIsLookedUpByTheSystem) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  auto server = make_tcp_transport(options);
  auto server_listener = std::make_shared<RecordingListener>();
  std::string address = *server->listen([&](const std::shared_ptr<Connection>&) { return server_listener; });
  address.replace(0, address.rfind(':'), "localhost");
  auto client = make_tcp_transport();
  absl::StatusOr<std::shared_ptr<Connection>> connection;
  {
    const DutyScope duty;
    connection = client->connect(address, std::make_shared<RecordingListener>(), absl::Seconds(60));
  }
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(server_listener->wait_for_messages(1).size(), 1u);
}

TEST(TcpListen, AnExceptionOfTheHandlerEndsTheConnection) {
  auto server = make_tcp_transport();
  const auto address =
      server->listen([](const std::shared_ptr<Connection>&) -> std::shared_ptr<ConnectionListener> {
        throw std::bad_alloc();
      });
  ASSERT_TRUE(address.ok()) << address.status();
  auto client = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  const auto connection = client->connect(*address, listener, absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kUnavailable);
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
