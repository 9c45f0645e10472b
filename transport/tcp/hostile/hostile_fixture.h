#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"
#include "gtest/gtest.h"

namespace gradwire::transport {

// Test fixture with a listening tcp transport and plain sockets that connect to it.
class HostileTcp : public testing::Test {
 protected:
  static TcpOptions server_options() {
    TcpOptions options;
    options.bind_address = "127.0.0.1";
    // The user of a process that has ended is not known any more, and some of these sockets end at once.
    options.credentials = security::insecure_credentials();
    options.limits.max_message_bytes = uint64_t{1} << 30;
    options.limits.max_buffer_bytes = uint64_t{1} << 29;
    options.stripes = 2;
    options.stripe_from_bytes = kMinStripedBytes;
    options.user_timeout = absl::Seconds(1);
    return options;
  }

  void SetUp() override { start(server_options()); }

  void start(const TcpOptions& options) {
    server_ = make_tcp_transport(options);
    auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      peers_.push_back(connection->peer());
      listeners_.push_back(std::make_shared<RecordingListener>());
      changed_.notify_all();
      return listeners_.back();
    });
    ASSERT_TRUE(listening.ok()) << listening.status();
    address_ = *listening;
  }

  void TearDown() override { server_->shutdown(); }

  // Returns a connected plain socket that has sent its preface. `own_address` receives the address under
  // which the server knows it.
  Descriptor connect(std::string* own_address = nullptr) {
    Descriptor socket = connect_silently(own_address);
    write_all(socket, Preface{.token = random_token()}.encode());
    return socket;
  }

  // `from`: an address of the loopback interface.
  Descriptor connect_silently(std::string* own_address = nullptr, const char* from = nullptr) {
    auto addresses = resolve_addresses(address_);
    EXPECT_TRUE(addresses.ok());
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (from != nullptr) {
      const SocketAddress source = resolve_bind_addresses(from, 0)->front();
      EXPECT_EQ(::bind(socket.get(), source.get(), source.length), 0) << std::strerror(errno);
    }
    EXPECT_EQ(::connect(socket.get(), addresses->front().get(), addresses->front().length), 0)
        << std::strerror(errno);
    if (own_address != nullptr) {
      SocketAddress own;
      own.length = sizeof(own.storage);
      ::getsockname(socket.get(), own.get(), &own.length);
      *own_address = to_string(own);
    }
    return socket;
  }

  std::shared_ptr<RecordingListener> listener(std::size_t index) {
    absl::Time deadline = Clock::system().now() + kTestTimeout;
    MutexLock lock(mutex_);
    while (listeners_.size() <= index && Clock::system().now() < deadline) {
      Clock::system().wait_until(mutex_, changed_, deadline);
    }
    return listeners_.at(index);
  }

  // The identity of the peer when the connection with this index was accepted.
  security::PeerIdentity peer(std::size_t index) {
    MutexLock lock(mutex_);
    return peers_.at(index);
  }

  std::size_t listener_count() {
    MutexLock lock(mutex_);
    return listeners_.size();
  }

  static void write_all(const Descriptor& socket, absl::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t written = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (written <= 0) return;
      bytes.remove_prefix(written);
    }
  }

  // Whether the server closes its end, within the timeout of a test.
  static bool is_closed_by_server(const Descriptor& socket) {
    timeval timeout = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    // Read the data that the server sent before it closed, unless it has reset the connection.
    char bytes[4096];
    ssize_t got = 0;
    do {
      got = ::recv(socket.get(), bytes, sizeof(bytes), 0);
    } while (got > 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  void expect_still_serving(std::size_t index, const TcpOptions& options = TcpOptions()) {
    auto client = make_tcp_transport(options);
    auto client_listener = std::make_shared<RecordingListener>();
    auto connection = client->connect(address_, client_listener, absl::Seconds(30));
    ASSERT_TRUE(connection.ok());
    Message message;
    message.header = "hello";
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    EXPECT_EQ(listener(index)->wait_for_messages(1).size(), 1);
    client->shutdown();
    EXPECT_EQ(listener(index)->wait_closed().code(), absl::StatusCode::kUnavailable);
  }

  std::unique_ptr<Transport> server_;
  std::string address_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<RecordingListener>> listeners_ ABSL_GUARDED_BY(mutex_);
  std::vector<security::PeerIdentity> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
