// Tests a connecting tcp transport whose acceptor, a plain socket of the test, refuses it.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "gradwire/security/token/record.h"
#include "gradwire/transport/tcp/hostile/hostile_fixture.h"
#include "gradwire/transport/tcp/secure/fake_credentials.h"

namespace gradwire::transport {
namespace {

using security::Credentials;
using security::Record;

class Refusals : public testing::Test {
 protected:
  Refusals() {
    SocketAddress bound = loopback_addresses(0).front();
    EXPECT_EQ(::bind(listening_.get(), bound.get(), bound.length), 0);
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listening_.get(), bound.get(), &bound.length), 0);
    address_ = to_string(bound);
  }
  ~Refusals() override {
    if (client_ != nullptr) client_->shutdown();
  }

  void connect(const TcpOptions& options = TcpOptions(), absl::Duration timeout = absl::Seconds(60)) {
    client_ = make_tcp_transport(options);
    auto connection = client_->connect(address_, listener_, timeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
  }
  // Accepts a connection and reads its preface.
  Descriptor accept_one() {
    Descriptor accepted(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
    timeval timeout = {60, 0};
    ::setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    EXPECT_EQ(read(accepted, Preface::kBytes).size(), Preface::kBytes);
    return accepted;
  }
  static std::string read(const Descriptor& socket, std::size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(socket.get(), bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  static void write(const Descriptor& socket, absl::string_view bytes) {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  static TcpOptions with_handshake() {
    TcpOptions options;
    options.credentials = fake_credentials({.kind = Credentials::Kind::kToken, .has_stream = false});
    return options;
  }

  Descriptor listening_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address_;
  std::unique_ptr<Transport> client_;
  std::shared_ptr<RecordingListener> listener_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> connection_;
};

TEST_F(Refusals, ARefusalInPlaceOfAFrameEndsTheConnectionWithItsText) {
  connect();
  Descriptor socket = accept_one();
  for (char byte : Record::refusal("a token is missing").encode()) write(socket, absl::string_view(&byte, 1));
  const absl::Status reason = listener_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_NE(reason.message().find("a token is missing"), std::string::npos) << reason;
  EXPECT_NE(reason.message().find(address_), std::string::npos) << reason;
}

TEST_F(Refusals, ARefusalReachesASenderThatIsStillSending) {
  connect();
  Message message;
  message.buffers = {make_test_buffer(64 << 20, 1)};
  ASSERT_TRUE(connection_->send(std::move(message)).ok());
  Descriptor socket = accept_one();
  write(socket, Record::refusal("a token is missing").encode());
  // Unread bytes of the client make this a reset.
  socket.reset();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(Refusals, HostileTextIsEscaped) {
  connect();
  Descriptor socket = accept_one();
  write(socket, Record{Record::Kind::kRefusal, "\x1b[2J\nerror: \xff"}.encode());
  const std::string reason(listener_->wait_closed().message());
  EXPECT_NE(reason.find("?[2J?error: ?"), std::string::npos) << reason;
}

TEST_F(Refusals, ARefusalThatIsTooLongIsMalformed) {
  connect();
  Descriptor socket = accept_one();
  write(socket, Record{Record::Kind::kRefusal, std::string(Record::kMaxRefusal + 1, 'x')}.encode());
  const absl::Status reason = listener_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_LT(reason.message().size(), 400u) << reason;
}

TEST_F(Refusals, AnotherRecordIsMalformed) {
  connect();
  Descriptor socket = accept_one();
  write(socket, Record{Record::Kind::kWelcome, "welcome"}.encode());
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Refusals, ARefusalThatIsCutIsTheEndOfTheConnection) {
  connect();
  Descriptor socket = accept_one();
  write(socket, Record::refusal("a token is missing").encode().substr(0, 15));
  socket.reset();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(Refusals, ARefusalBehindAMessageIsMalformed) {
  connect();
  Descriptor socket = accept_one();
  write(socket, encode_frame_start(Message()) + Record::refusal("too late").encode());
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(listener_->message_count(), 1u);
}

TEST_F(Refusals, AFirstMessageInPiecesArrives) {
  Message message;
  message.header = "in pieces";
  connect();
  Descriptor socket = accept_one();
  for (char byte : encode_frame_start(message) + message.header) write(socket, absl::string_view(&byte, 1));
  const auto received = listener_->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].header, "in pieces");
}

TEST_F(Refusals, AConnectionThatEndsInItsHandshakeIsOpenedAgain) {
  connect(with_handshake());
  ASSERT_TRUE(connection_->send({"kept", {}}).ok());
  // The acceptor has no place at first.
  for (int i = 0; i < 2; ++i) accept_one();
  Descriptor socket = accept_one();
  const std::string greeting = fake_greeting("right", {.own_name = "acceptor"});
  EXPECT_EQ(read(socket, greeting.size()), fake_greeting("right", {}));
  write(socket, greeting);
  Message message;
  message.header = "kept";
  const std::string frame = encode_frame_start(message) + message.header;
  EXPECT_EQ(read(socket, frame.size()), frame);
  EXPECT_EQ(connection_->peer().proof, security::PeerIdentity::Proof::kToken);
  EXPECT_EQ(connection_->peer().name, "acceptor");
}

TEST_F(Refusals, AHandshakeWithoutAnAnswerFailsAfterTheTimeout) {
  connect(with_handshake(), absl::Milliseconds(100));
  ASSERT_TRUE(connection_->send({"never sent", {}}).ok());
  Descriptor socket = accept_one();
  const absl::Status reason = listener_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_NE(reason.message().find("did not complete the handshake in time"), std::string::npos) << reason;
  EXPECT_EQ(connection_->peer().proof, security::PeerIdentity::Proof::kNone);
}

TEST_F(Refusals, AWrongProofEndsTheConnectionAtOnce) {
  connect(with_handshake());
  Descriptor socket = accept_one();
  write(socket, fake_greeting("wrong", {}));
  const absl::Status reason = listener_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
}

TEST_F(Refusals, ShutdownAndCloseEndAHandshake) {
  connect(with_handshake());
  Descriptor socket = accept_one();
  connection_->close(absl::CancelledError("closed"));
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(read(socket, 65).size(), 64u);
  listener_ = std::make_shared<RecordingListener>();
  client_->shutdown();
  connect(with_handshake());
  socket = accept_one();
  client_->shutdown();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace gradwire::transport
