// Clients of a TcpStore's server that begin like a TCPStore of PyTorch, and then break its protocol.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

std::string query_byte(C10dQuery code) { return std::string(1, static_cast<char>(code)); }

std::string encoded_number(uint64_t value, int size = 8) {
  std::string bytes;
  put_c10d_number(bytes, value, size);
  return bytes;
}

std::string encoded_text(absl::string_view value) {
  std::string bytes;
  put_c10d_string(bytes, value);
  return bytes;
}

class HostileTorchClient : public ::testing::Test {
 protected:
  // Checks that the server still serves others, and has forgotten the client.
  void TearDown() override {
    TcpStore store("localhost", server_->port());
    store.set("after", "all");
    EXPECT_EQ(store.get("after"), "all");
  }

  Descriptor connect(absl::string_view first = kC10dGreeting) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    // A test that reaches it fails.
    const timeval timeout = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    write(socket, first);
    return socket;
  }
  static void write(const Descriptor& socket, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }
  static std::string read(const Descriptor& socket, std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
      const ssize_t more = ::recv(socket.get(), bytes.data() + got, size - got, 0);
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }
  // Whether the server closes its end after some answers.
  static bool is_closed(const Descriptor& socket) {
    char bytes[4096];
    ssize_t got = 0;
    do {
      got = ::recv(socket.get(), bytes, sizeof(bytes), 0);
    } while (got > 0);
    return got == 0 || errno == ECONNRESET;
  }
  void expect_ping(const Descriptor& socket) {
    write(socket, query_byte(C10dQuery::kPing) + encoded_number(77, 4));
    EXPECT_EQ(read(socket, 4), encoded_number(77, 4));
  }
  // Returns when the server has `count` waiting calls.
  void wait_for_waiters(std::size_t count) {
    while (server_->num_waiters() != count) std::this_thread::yield();
  }

  std::unique_ptr<TcpStoreServer> server_ =
      value_or_throw(TcpStoreServer::start({.host = "localhost", .max_unread_bytes = std::size_t{4} << 20}));
};

TEST_F(HostileTorchClient, GreetingInPiecesIsAccepted) {
  const Descriptor socket = connect("");
  for (const char byte : kC10dGreeting) write(socket, absl::string_view(&byte, 1));
  expect_ping(socket);
}

TEST_F(HostileTorchClient, WrongGreetingIsClosed) {
  std::string wrong(kC10dGreeting);
  wrong.back() ^= 1;
  // As many bytes as a preface has.
  EXPECT_TRUE(is_closed(connect(wrong + std::string(19, '\0'))));
  EXPECT_TRUE(is_closed(connect(std::string(24, '\0'))));
}

TEST_F(HostileTorchClient, GarbageAndHugeLengthsAreClosed) {
  for (const std::string& bytes : std::vector<std::string>{
           "\xff", "GET / HTTP/1.1\r\n\r\n", query_byte(C10dQuery::kGet) + encoded_number(~uint64_t{0}),
           query_byte(C10dQuery::kSet) + encoded_text("/k") + encoded_number(uint64_t{1} << 40),
           query_byte(C10dQuery::kWait) + encoded_number(uint64_t{1} << 62),
           query_byte(C10dQuery::kMultiSet) + encoded_number(1 << 30),
           query_byte(C10dQuery::kGet) + encoded_text("without prefix")}) {
    const Descriptor socket = connect();
    write(socket, bytes);
    EXPECT_TRUE(is_closed(socket)) << bytes;
  }
}

TEST_F(HostileTorchClient, ClientThatEndsInTheMiddleOfARequestChangesNothing) {
  TcpStore store("localhost", server_->port());
  const std::string set = query_byte(C10dQuery::kSet) + encoded_text("/key") + encoded_text("value");
  for (std::size_t size = 1; size < set.size(); ++size) {
    const Descriptor socket = connect();
    expect_ping(socket);
    write(socket, set.substr(0, size));
  }
  EXPECT_EQ(store.num_keys(), 0);
}

TEST_F(HostileTorchClient, WaitsOfAClientThatEndsAreDropped) {
  {
    std::vector<Descriptor> sockets;
    for (int i = 0; i < 8; ++i) {
      sockets.push_back(connect());
      write(sockets.back(),
            query_byte(C10dQuery::kWait) + encoded_number(1) + encoded_text(absl::StrCat("/", i)));
    }
    wait_for_waiters(8);
  }
  wait_for_waiters(0);
}

TEST_F(HostileTorchClient, SecondWaitIsClosedAndTheFirstForgotten) {
  const Descriptor socket = connect();
  const std::string wait = query_byte(C10dQuery::kWait) + encoded_number(1) + encoded_text("/never");
  write(socket, wait + wait);
  EXPECT_TRUE(is_closed(socket));
  wait_for_waiters(0);
}

TEST_F(HostileTorchClient, ClientThatDoesNotReadItsAnswersIsClosed) {
  TcpStore store("localhost", server_->port());
  store.set("large", std::string(std::size_t{1} << 20, 'v'));
  const Descriptor socket = connect();
  const std::string get = query_byte(C10dQuery::kGet) + encoded_text("/large");
  std::string many;
  // Far more answers than the system's buffers and the limit hold.
  for (int i = 0; i < 200; ++i) many += get;
  write(socket, many);
  EXPECT_TRUE(is_closed(socket));
}

// Larger than the system's buffers, so that a part of it is in the server when it stops.
constexpr std::size_t kLargeBytes = std::size_t{32} << 20;

TEST_F(HostileTorchClient, AnswerThatIsBeingSentWhenTheServerStopsArrives) {
  server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  TcpStore("localhost", server_->port()).set("large", std::string(kLargeBytes, 'v'));
  const Descriptor socket = connect();
  write(socket, query_byte(C10dQuery::kGet) + encoded_text("/large"));
  EXPECT_EQ(read(socket, 8), encoded_number(kLargeBytes));
  std::thread stop([&] {
    server_->shutdown(absl::Seconds(600));
    // Without the wait in shutdown() this would drop the rest.
    server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  });
  EXPECT_EQ(read(socket, kLargeBytes).size(), kLargeBytes);
  EXPECT_TRUE(is_closed(socket));
  stop.join();
}

TEST_F(HostileTorchClient, ClientThatDoesNotReadHoldsUpAStopOnlyForItsGrace) {
  server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  TcpStore("localhost", server_->port()).set("large", std::string(kLargeBytes, 'v'));
  const Descriptor socket = connect();
  write(socket, query_byte(C10dQuery::kGet) + encoded_text("/large"));
  EXPECT_EQ(read(socket, 8), encoded_number(kLargeBytes));
  server_->shutdown(absl::Milliseconds(10));
  EXPECT_LT(read(socket, kLargeBytes).size(), kLargeBytes);
  server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
}

TEST_F(HostileTorchClient, WaitingClientsAreClosedWhenTheServerStops) {
  const Descriptor socket = connect();
  write(socket, query_byte(C10dQuery::kWait) + encoded_number(1) + encoded_text("/never"));
  wait_for_waiters(1);
  server_->shutdown();
  EXPECT_TRUE(is_closed(socket));
  server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
}

}  // namespace
}  // namespace gradwire::store
