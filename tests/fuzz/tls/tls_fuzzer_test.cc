#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <random>
#include <string>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace gradwire::security {
namespace {

// The bytes that each end of a good handshake sends.
struct Recording {
  std::string client;
  std::string server;
};

Recording record() {
  const TestAuthority authority;
  int client_ends[2];
  int server_ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, client_ends), 0);
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, server_ends), 0);
  const Descriptor client_own(client_ends[0]);
  const Descriptor client_network(client_ends[1]);
  const Descriptor server_own(server_ends[0]);
  const Descriptor server_network(server_ends[1]);
  const CredentialsPtr credentials = *make_certificate_credentials(authority.worker("job", "a"));
  const auto client = credentials->connected(client_own.get(), {"rpc", "", ""});
  const auto server = credentials->accepted(server_own.get(), {"rpc", "", ""});
  const auto pass = [](const Descriptor& from, const Descriptor& to, std::string& all) {
    std::string bytes(16384, '\0');
    const ssize_t count = ::recv(from.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) return;
    all.append(bytes, 0, static_cast<size_t>(count));
    EXPECT_EQ(::send(to.get(), bytes.data(), static_cast<size_t>(count), 0), count);
  };
  Recording recording;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(client->step().ok());
    pass(client_network, server_network, recording.client);
    EXPECT_TRUE(server->step().ok());
    pass(server_network, client_network, recording.server);
  }
  EXPECT_GT(recording.client.size(), 500);
  EXPECT_GT(recording.server.size(), 500);
  return recording;
}

TEST(TlsFuzzer, MutationsOfARecordedHandshakeAreRefusedByBothRoles) {
  const Recording recording = record();
  fuzzing::run(std::string(1, '\0') + recording.client);
  fuzzing::run('\1' + recording.server);
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const bool client = random() % 2 == 0;
    std::string bytes = client ? recording.client : recording.server;
    fuzzing::mutate(bytes, random);
    fuzzing::run(static_cast<char>(client ? 0 : 1) + bytes);
  }
}

TEST(TlsFuzzer, ChangesOnTheWayAreNoticed) {
  // Without any change the ends must understand each other.
  fuzzing::run("\2");
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string changes = "\2";
    for (int count = 1 + static_cast<int>(random() % 3); count > 0; --count) {
      const unsigned position = random() % 2400;
      changes += static_cast<char>(random());
      changes += static_cast<char>(position % 256);
      changes += static_cast<char>(position / 256);
      changes += static_cast<char>(random());
    }
    fuzzing::run(changes);
  }
}

TEST(TlsFuzzer, RandomBytesBehindTheHeadOfARecordAreRefused) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string bytes = {static_cast<char>(random() % 2), 0x16, 3, 1, 0, static_cast<char>(random())};
    fuzzing::run(bytes + fuzzing::random_bytes(random() % 300, random));
  }
}

}  // namespace
}  // namespace gradwire::security
