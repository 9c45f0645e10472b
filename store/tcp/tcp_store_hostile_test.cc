// Tests of a TcpStore whose peer is not a TcpStore.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string integer(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// The formats are described in transport/tcp/wire/preface.h and frame.h.
std::string preface() { return std::string("GWt1\2\0\0\0", 8) + integer(41, 8) + integer(42, 8); }
std::string frame_start(uint64_t header_bytes) {
  return std::string("GWf1\2\0\0\0", 8) + integer(header_bytes, 8) + integer(0, 8);
}
std::string frame(const proto::Request& request) {
  const std::string header = request.SerializeAsString();
  return frame_start(header.size()) + header;
}

proto::Request hello() {
  proto::Request request;
  request.set_id(1);
  request.mutable_hello()->set_magic(kStoreMagic);
  request.mutable_hello()->set_version(kStoreVersion);
  request.mutable_hello()->set_client(7);
  return request;
}

class HostileClient : public ::testing::Test {
 protected:
  // Checks that the server still serves others.
  void TearDown() override {
    TcpStore store("localhost", server_->port());
    store.set("after", "all");
    EXPECT_EQ(store.get("after"), "all");
    EXPECT_EQ(server_->num_waiters(), 0);
  }

  Descriptor connect() {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(server_->port());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }
  // Returns whether all bytes were sent.
  static bool write_all(const Descriptor& socket, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Returns the bytes that the server sent, when it has closed the connection.
  static std::string read_all(const Descriptor& socket) {
    std::string all;
    char bytes[4096];
    ssize_t got;
    while ((got = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0)
      all.append(bytes, static_cast<std::size_t>(got));
    return all;
  }
  std::string answer_to(const std::string& bytes) {
    const Descriptor socket = connect();
    write_all(socket, bytes);
    return read_all(socket);
  }

  const std::unique_ptr<TcpStoreServer> server_ = value_or_throw(
      TcpStoreServer::start({.host = "localhost", .port = 0, .max_unread_bytes = std::size_t{32} << 20}));
};

TEST_F(HostileClient, ConnectionOfAnotherProtocolIsClosed) {
  EXPECT_EQ(answer_to("GET / HTTP/1.1\r\nHost: store\r\n\r\n"), "");
  // A gRPC client.
  EXPECT_EQ(answer_to("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(27, '\0')), "");
  EXPECT_EQ(answer_to(preface() + "no frame that anybody knows, and long enough to be one"), "");
}

TEST_F(HostileClient, ConnectionWithMalformedRequestsIsClosed) {
  EXPECT_EQ(answer_to(preface() + frame_start(5) + "\xff\xff\xff\xff\xff"), "");
  // The length is over the limit; no byte of the body is sent.
  EXPECT_EQ(answer_to(preface() + frame_start(uint64_t{1} << 60)), "");
  EXPECT_EQ(answer_to(preface() + frame_start(kMaxMessageBytes + 1)), "");
  // The frame has buffers, but requests have none.
  EXPECT_EQ(
      answer_to(preface() + std::string("GWf1\2\0\0\0", 8) + integer(0, 8) + integer(1, 8) + integer(4, 8)),
      "");
}

TEST_F(HostileClient, ConnectionWithoutHelloIsClosed) {
  proto::Request request;
  request.set_id(1);
  request.mutable_set()->set_key("key");
  EXPECT_EQ(answer_to(preface() + frame(request)), "");
  request = hello();
  request.mutable_hello()->set_magic(1);
  EXPECT_EQ(answer_to(preface() + frame(request)), "");
  EXPECT_EQ(TcpStore("localhost", server_->port()).num_keys(), 0);
}

TEST_F(HostileClient, IncompleteMessageIsIgnored) {
  proto::Request request;
  request.set_id(2);
  request.mutable_set()->set_key("key");
  request.mutable_set()->set_value(std::string(100'000, 'v'));
  const std::string bytes = preface() + frame(hello()) + frame(request);
  {
    const Descriptor socket = connect();
    ASSERT_TRUE(write_all(socket, absl::string_view(bytes).substr(0, bytes.size() - 1)));
    ::shutdown(socket.get(), SHUT_WR);
    read_all(socket);
  }
  EXPECT_EQ(TcpStore("localhost", server_->port()).num_keys(), 0);
}

TEST_F(HostileClient, ConnectionThatDoesNotReadItsAnswersIsClosed) {
  TcpStore store("localhost", server_->port());
  store.set("large", std::string(std::size_t{4} << 20, 'v'));
  proto::Request request;
  request.mutable_watch()->set_key("large");
  std::string many;
  for (int i = 0; i < 1'000; ++i) {
    request.set_id(static_cast<uint64_t>(i + 2));
    many += frame(request);
  }
  const Descriptor socket = connect();
  ASSERT_TRUE(write_all(socket, preface() + frame(hello())));
  // The answers to one write alone are 4 GiB.
  while (write_all(socket, many)) {
  }
}

TEST_F(HostileClient, WaitsOfAClosedConnectionAreDropped) {
  std::string bytes = preface() + frame(hello());
  proto::Request request;
  request.set_timeout_us(-1);
  pack_keys({"never", "ever"}, *request.mutable_wait()->mutable_keys());
  for (int i = 0; i < 5'000; ++i) {
    request.set_id(static_cast<uint64_t>(i % 100));
    bytes += frame(request);
  }
  {
    const Descriptor socket = connect();
    ASSERT_TRUE(write_all(socket, bytes));
    while (server_->num_waiters() < 5'000) std::this_thread::yield();
  }
  while (server_->num_waiters() > 0) std::this_thread::yield();
}

// A server that reads something from each connection and then sends a fixed answer.
class OtherServer {
 public:
  explicit OtherServer(std::string answer) : answer_(std::move(answer)) {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~OtherServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  void run() {
    while (true) {
      const Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.valid()) return;
      char bytes[4096];
      if (::recv(socket.get(), bytes, sizeof(bytes), 0) <= 0) continue;
      (void)::send(socket.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      while (::recv(socket.get(), bytes, sizeof(bytes), 0) > 0) {
      }
    }
  }

  const std::string answer_;
  Descriptor listener_;
  int port_ = 0;
  std::thread thread_;
};

absl::Status status_within(int port, absl::Duration timeout) {
  return TcpStore::open("127.0.0.1", port, {.timeout = timeout}).status();
}

TEST(HostileServer, OtherProtocolsAreNamedAtOnce) {
  for (const std::string& answer :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("SSH-2.0-other\r\n"),
        // The settings of a gRPC server.
        std::string("\0\0\6\4\0\0\0\0\0\0\5\0\0\x40\0", 15)}) {
    OtherServer server(answer);
    const absl::Status status = status_within(server.port(), absl::Seconds(60));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("127.0.0.1:", server.port())));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a Gradwire store"));
  }
}

TEST(HostileServer, SilenceIsUnavailable) {
  OtherServer server("");
  const absl::Status status = status_within(server.port(), absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a Gradwire store"));
}

// A server that speaks the protocol, but whose answers the test chooses.
class LyingServer {
 public:
  using Answer = std::function<std::string(const proto::Request&)>;
  explicit LyingServer(Answer answer) {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    transport_ = transport::make_tcp_transport(options);
    const std::string address = value_or_throw(
        transport_->listen([answer = std::move(answer)](const std::shared_ptr<transport::Connection>&) {
          return std::make_shared<transport::RecordingListener>(
              [answer](transport::Connection& connection, const transport::Message& message) {
                proto::Request request;
                request.ParseFromString(message.header);
                transport::Message reply;
                reply.header = answer(request);
                (void)connection.send(std::move(reply));
              });
        }));
    port_ = std::stoi(address.substr(address.rfind(':') + 1));
  }
  int port() const { return port_; }

  static proto::Response welcome(const proto::Request& request) {
    proto::Response response;
    response.set_id(request.id());
    response.mutable_hello()->set_magic(kStoreMagic);
    response.mutable_hello()->set_version(kStoreVersion);
    response.mutable_hello()->set_server(5);
    return response;
  }

 private:
  std::unique_ptr<transport::Transport> transport_;
  int port_ = 0;
};

TEST(HostileServer, MalformedAnswerEndsTheAttempt) {
  LyingServer garbage([](const proto::Request&) { return std::string("\xff\xff\xff"); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status_within(garbage.port(), absl::Seconds(60))));
  LyingServer no_magic([](const proto::Request& request) {
    proto::Response response = LyingServer::welcome(request);
    response.mutable_hello()->set_magic(3);
    return response.SerializeAsString();
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(status_within(no_magic.port(), absl::Seconds(60))));
  LyingServer strange_code([](const proto::Request& request) {
    proto::Response response;
    response.set_id(request.id());
    response.set_code(-12345);
    response.set_message(std::string(1'000'000, 'm'));
    return response.SerializeAsString();
  });
  const absl::Status status = status_within(strange_code.port(), absl::Seconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_LT(status.message().size(), 10'000);
}

TEST(HostileServer, AnswersOfAnotherKindAreRejected) {
  LyingServer server([](const proto::Request& request) {
    if (request.has_hello()) return LyingServer::welcome(request).SerializeAsString();
    proto::Response response;
    response.set_id(request.id());
    if (request.has_wait()) {
      response.mutable_wait()->mutable_missing()->add_sizes(1'000'000'000);
    } else {
      response.mutable_num_keys()->set_count(-1);
    }
    return response.SerializeAsString();
  });
  TcpStore store("127.0.0.1", server.port());
  EXPECT_TRUE(absl::IsFailedPrecondition(store.try_set("key", "value")));
  EXPECT_TRUE(absl::IsFailedPrecondition(store.try_get("key").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store.try_wait({"key"})));
}

// A name of no bytes takes one byte in the answer, but 32 in the client.
TEST(HostileServer, ListOfMoreNamesThanAStoreReturnsIsRejected) {
  LyingServer server([](const proto::Request& request) {
    if (request.has_hello()) return LyingServer::welcome(request).SerializeAsString();
    proto::Response response;
    response.set_id(request.id());
    response.mutable_list_keys()->mutable_keys()->mutable_sizes()->Resize(
        static_cast<int>(kMaxListedKeys) + 1, 0);
    return response.SerializeAsString();
  });
  TcpStore store("127.0.0.1", server.port());
  EXPECT_TRUE(absl::IsFailedPrecondition(store.try_list_keys().status()));
}

TEST(HostileServer, AnswersWithoutARequestAreDropped) {
  LyingServer server([](const proto::Request& request) {
    if (request.has_hello()) return LyingServer::welcome(request).SerializeAsString();
    proto::Response response;
    response.set_id(request.id() + 1'000);
    response.mutable_set();
    return response.SerializeAsString();
  });
  TcpStore store("127.0.0.1", server.port());
  EXPECT_TRUE(absl::IsDeadlineExceeded(store.try_set("key", "value", absl::Milliseconds(10))));
}

}  // namespace
}  // namespace gradwire::store
