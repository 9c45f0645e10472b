#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/handshake_fixture.h"
#include "gradwire/security/tls/tls_handshake.h"
#include "gradwire/security/tls/tls_stream.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;

struct Workers {
  TestAuthority authority;
  CredentialsPtr a = *make_certificate_credentials(authority.worker("job", "a"));
  CredentialsPtr b = *make_certificate_credentials(authority.worker("job", "b"));
};

// Certificates take a moment to make, and all tests may use the same.
Workers& workers() {
  static Workers made;
  return made;
}

// Two connected streams.
struct Connection {
  explicit Connection(SocketPair sockets = {}) : ends(workers().a, workers().b, std::move(sockets)) {
    ends.run();
    EXPECT_TRUE(ends.done()) << ends.client_error() << ends.server_error();
    client = ends.client->take_stream();
    server = ends.server->take_stream();
  }
  int client_socket() const { return ends.sockets.client.get(); }
  int server_socket() const { return ends.sockets.server.get(); }

  Ends ends;
  std::shared_ptr<SecureStream> client;
  std::shared_ptr<SecureStream> server;
};

iovec piece_of(const std::string& text) { return {const_cast<char*>(text.data()), text.size()}; }

ssize_t write(SecureStream& stream, const std::string& text) {
  const iovec piece = piece_of(text);
  return stream.write({&piece, 1});
}

// Reads until `size` bytes are there, the stream ends, or it fails.
std::string read(SecureStream& stream, int socket, size_t size) {
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const iovec place{text.data() + done, size - done};
    const ssize_t count = stream.read({&place, 1});
    if (count == 0 || (count < 0 && errno != EAGAIN)) break;
    if (count < 0 && !wait_for(socket, POLLIN)) break;
    if (count > 0) done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

// Writes all of `text`. After EAGAIN the bytes are somewhere else in memory.
bool write_all(SecureStream& stream, int socket, std::string text) {
  while (!text.empty()) {
    const ssize_t count = write(stream, text);
    if (count < 0 && errno != EAGAIN) return false;
    if (count < 0 && !wait_for(socket, POLLOUT)) return false;
    std::string rest = text.substr(count > 0 ? static_cast<size_t>(count) : 0);
    std::fill(text.begin(), text.end(), '?');
    text = std::move(rest);
  }
  return true;
}

std::string random_text(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

ssize_t read_byte(SecureStream& stream) {
  char byte = 0;
  const iovec place{&byte, 1};
  return stream.read({&place, 1});
}

SocketPair tcp_sockets() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  SocketPair sockets;
  EXPECT_EQ(::bind(listener.get(), any, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), any, &size), 0);
  sockets.client = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(sockets.client.get(), any, size), 0);
  sockets.server = Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_EQ(::fcntl(sockets.client.get(), F_SETFL, O_NONBLOCK), 0);
  return sockets;
}

void shrink(int socket) {
  const int size = 1;
  ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
}

TEST(TlsStream, BytesArriveInBothDirections) {
  Connection connection;
  errno = 0;
  EXPECT_EQ(read_byte(*connection.server), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(write(*connection.client, "hello"), 5);
  EXPECT_EQ(read(*connection.server, connection.server_socket(), 5), "hello");
  EXPECT_EQ(write(*connection.server, "and back"), 8);
  EXPECT_EQ(read(*connection.client, connection.client_socket(), 8), "and back");
}

TEST(TlsStream, NothingOfTheTextIsOnTheSocket) {
  Connection connection;
  const std::string secret(4000, 's');
  EXPECT_EQ(write(*connection.client, secret), 4000);
  std::string wire(8000, '\0');
  const ssize_t size = ::recv(connection.server_socket(), wire.data(), wire.size(), 0);
  ASSERT_GT(size, 4000);
  EXPECT_EQ(wire.find("ssss"), std::string::npos);
}

TEST(TlsStream, SmallPiecesShareOneRecord) {
  Connection connection;
  std::vector<std::string> texts(100, "ten bytes.");
  std::vector<iovec> pieces;
  for (const std::string& text : texts) pieces.push_back(piece_of(text));
  EXPECT_EQ(connection.client->write(pieces), 1000);
  std::string wire(8000, '\0');
  // The record has a header of 5 bytes, a type and 16 bytes against changes.
  EXPECT_EQ(::recv(connection.server_socket(), wire.data(), wire.size(), 0), 1000 + 22);
}

TEST(TlsStream, PlacesAreFilledOneAfterTheOther) {
  Connection connection;
  EXPECT_EQ(write(*connection.client, "abc"), 3);
  EXPECT_EQ(write(*connection.client, "defgh"), 5);
  std::string first(2, '\0');
  std::string none;
  std::string second(9, '.');
  const iovec places[] = {piece_of(first), piece_of(none), piece_of(second)};
  EXPECT_EQ(connection.server->read(places), 8);
  EXPECT_EQ(first, "ab");
  EXPECT_EQ(second, "cdefgh...");
}

TEST(TlsStream, EachDirectionEndsByItself) {
  Connection connection;
  EXPECT_EQ(write(*connection.client, "last"), 4);
  connection.client->end_writes();
  connection.client->end_writes();
  EXPECT_EQ(::shutdown(connection.client_socket(), SHUT_WR), 0);
  errno = 0;
  EXPECT_EQ(write(*connection.client, "more"), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(read(*connection.server, connection.server_socket(), 4), "last");
  EXPECT_EQ(read_byte(*connection.server), 0);
  EXPECT_EQ(read_byte(*connection.server), 0);
  EXPECT_EQ(write(*connection.server, "answer"), 6);
  EXPECT_EQ(read(*connection.client, connection.client_socket(), 6), "answer");
  connection.server->end_writes();
  EXPECT_EQ(read_byte(*connection.client), 0);
  EXPECT_TRUE(connection.client->failure().ok());
  EXPECT_TRUE(connection.server->failure().ok());
}

TEST(TlsStream, CutConnectionIsAnErrorAndNotTheEnd) {
  Connection connection;
  EXPECT_EQ(write(*connection.client, "half"), 4);
  connection.ends.sockets.client.reset();
  EXPECT_EQ(read(*connection.server, connection.server_socket(), 4), "half");
  for (int i = 0; i < 2; ++i) {
    errno = 0;
    EXPECT_EQ(read_byte(*connection.server), -1);
    EXPECT_EQ(errno, EPROTO);
    EXPECT_TRUE(absl::IsUnavailable(connection.server->failure()));
    EXPECT_THAT(std::string(connection.server->failure().message()),
                HasSubstr("TLS with client:2 failed: the connection was cut"));
  }
}

// The default action of SIGPIPE would end the test.
TEST(TlsStream, WritingToAClosedSocketIsEpipe) {
  Connection connection;
  connection.ends.sockets.server.reset();
  errno = 0;
  EXPECT_EQ(write(*connection.client, "x"), -1);
  EXPECT_EQ(errno, EPIPE);
  connection.client->end_writes();
}

TEST(TlsStream, PartialWritesAndMovedBytesArriveInOrder) {
  SocketPair sockets;
  shrink(sockets.client.get());
  Connection connection(std::move(sockets));
  const std::string text = random_text(300'000, 1);
  // The kernel takes little, so most calls of write() take nothing, or a part of their bytes.
  std::string received;
  std::string rest = text;
  int without_room = 0;
  std::mt19937 random(2);
  while (received.size() < text.size()) {
    if (!rest.empty()) {
      // The bytes of the last call again, perhaps with more behind them, in pieces of other sizes.
      const std::string copy = rest.substr(0, 1 + random() % 100'000);
      const size_t cut = random() % (copy.size() + 1);
      const iovec pieces[] = {{const_cast<char*>(copy.data()), cut},
                              {const_cast<char*>(copy.data()) + cut, copy.size() - cut}};
      const ssize_t count = connection.client->write(pieces);
      ASSERT_TRUE(count >= 0 || errno == EAGAIN);
      ASSERT_LE(count, static_cast<ssize_t>(copy.size()));
      if (count < 0) ++without_room;
      if (count > 0) rest.erase(0, static_cast<size_t>(count));
    }
    std::string part(1 + random() % 5'000, '\0');
    const iovec place = piece_of(part);
    const ssize_t count = connection.server->read({&place, 1});
    ASSERT_TRUE(count > 0 || errno == EAGAIN) << connection.server->failure();
    if (count > 0) received.append(part, 0, static_cast<size_t>(count));
  }
  EXPECT_EQ(received, text);
  EXPECT_TRUE(rest.empty());
  EXPECT_GT(without_room, 10);
}

TEST(TlsStream, EverySizeAroundARecordArrives) {
  Connection connection(tcp_sockets());
  for (const size_t size : {1, 16'383, 16'384, 16'385, 32'768, 65'536, 65'537, 100'000}) {
    const std::string text = random_text(size, static_cast<unsigned>(size));
    std::thread writer([&] { EXPECT_TRUE(write_all(*connection.client, connection.client_socket(), text)); });
    EXPECT_EQ(read(*connection.server, connection.server_socket(), size), text) << size;
    writer.join();
  }
}

// One thread reads while another one writes, at both ends.
TEST(TlsStream, ManyBytesTravelInBothDirectionsAtOnce) {
  Connection connection(tcp_sockets());
  constexpr size_t kParts = 64;
  const std::string part = random_text(size_t{1} << 20, 3);
  const auto send = [&part](SecureStream& stream, int socket) {
    for (size_t i = 0; i < kParts; ++i) ASSERT_TRUE(write_all(stream, socket, part)) << i;
    stream.end_writes();
  };
  const auto receive = [&part](SecureStream& stream, int socket) {
    for (size_t i = 0; i < kParts; ++i) ASSERT_TRUE(read(stream, socket, part.size()) == part) << i;
    EXPECT_EQ(read(stream, socket, 1), "");
    EXPECT_TRUE(stream.failure().ok());
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { send(*connection.client, connection.client_socket()); });
  threads.emplace_back([&] { send(*connection.server, connection.server_socket()); });
  threads.emplace_back([&] { receive(*connection.client, connection.client_socket()); });
  threads.emplace_back([&] { receive(*connection.server, connection.server_socket()); });
  for (std::thread& thread : threads) thread.join();
}

TEST(TlsStream, KeysAreRenewedWithoutAnInterruption) {
  Ends ends(workers().a, workers().b);
  // The handshakes behind the interface, for a smaller number of records of one key.
  ends.run();
  ASSERT_TRUE(ends.done());
  TlsStream client(static_cast<TlsHandshake&>(*ends.client).take_parts(), 3);
  const std::shared_ptr<SecureStream> server = ends.server->take_stream();
  for (int i = 0; i < 20; ++i) {
    const std::string text = "message " + std::to_string(i);
    EXPECT_EQ(write(client, text), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(read(*server, ends.sockets.server.get(), text.size()), text);
    EXPECT_EQ(write(*server, text), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(read(client, ends.sockets.client.get(), text.size()), text);
  }
  // The fourth record of a key follows a message that announces the next key.
  EXPECT_EQ(write(client, "12345"), 5);
  EXPECT_EQ(write(client, "12345"), 5);
  std::string wire(1000, '\0');
  EXPECT_EQ(::recv(ends.sockets.server.get(), wire.data(), wire.size(), 0), 2 * (5 + 22) + 5 + 22);
}

TEST(TlsStream, ErrorsInTheQueueOfOpenSslDoNotLeak) {
  Connection good;
  Connection bad;
  // Garbage fails one connection.
  ASSERT_EQ(::send(bad.client_socket(), "garbage garbage", 15, 0), 15);
  EXPECT_EQ(read_byte(*bad.server), -1);
  EXPECT_EQ(errno, EPROTO);
  EXPECT_EQ(ERR_peek_error(), 0u);
  // Another user of OpenSSL in this thread left an error.
  ERR_raise(ERR_LIB_SSL, ERR_R_INTERNAL_ERROR);
  EXPECT_EQ(write(*good.client, "x"), 1);
  ERR_raise(ERR_LIB_SSL, ERR_R_INTERNAL_ERROR);
  EXPECT_EQ(read_byte(*good.server), 1);
  ERR_raise(ERR_LIB_SSL, ERR_R_INTERNAL_ERROR);
  EXPECT_EQ(read_byte(*good.server), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(good.server->failure().ok());
  ERR_clear_error();
}

}  // namespace
}  // namespace gradwire::security
