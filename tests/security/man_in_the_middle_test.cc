// A man in the middle, between a client of a store and the store. It passes everything on, and changes one
// byte of a message.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/token/record.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/tests/security/relay.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire {
namespace {

using security::Record;
using Way = Relay::Way;

std::unique_ptr<store::TcpStore> make_store(const SecurityOptions& security) {
  return std::make_unique<store::TcpStore>("127.0.0.1", 0,
                                           store::TcpStoreOptions{.is_master = true, .security = security});
}

// The bytes of the handshake in one direction, behind the preface of the client.
struct Lengths {
  std::size_t to_server;
  std::size_t to_client;
};

std::size_t records_end(const std::string& bytes, std::size_t begin, int count) {
  std::size_t at = begin;
  for (; count > 0; --count) {
    const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(bytes.at(at + index)); };
    at += Record::kHeaderBytes + byte(6) + std::size_t{256} * byte(7);
  }
  return at;
}

// Without the check of addresses a relay that changes nothing is not noticed.
Lengths lengths_of_token_handshake(int store_port, const SecurityOptions& client) {
  Relay relay(store_port);
  const auto opened = open_store(relay.port(), client);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return {records_end(relay.seen(Way::kToServer), transport::Preface::kBytes, 2),
          records_end(relay.seen(Way::kToClient), 0, 2)};
}

// The token of the preface is a name for stripes. It is not a secret, and a change only prevents stripes.
bool is_preface_token(Way way, std::size_t position) {
  return way == Way::kToServer && position >= 8 && position < transport::Preface::kBytes;
}

TEST(ManInTheMiddle, OfATokenIsSeenByTheAddresses) {
  const auto store = make_store(member(Protection::kToken));
  Relay relay(store->port());
  const auto refused = open_store(relay.port(), member(Protection::kToken));
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("address"), std::string::npos) << refused.status();
  EXPECT_EQ(store->num_keys(), 0);
}

TEST(ManInTheMiddle, ChangesNoByteOfATokensHandshake) {
  const SecurityOptions security = member(Protection::kToken, /*relayed=*/true);
  const auto store = make_store(security);
  const Lengths lengths = lengths_of_token_handshake(store->port(), security);
  ASSERT_GT(lengths.to_server, 150);
  ASSERT_GT(lengths.to_client, 120);
  for (const Way way : {Way::kToServer, Way::kToClient}) {
    const std::size_t end = way == Way::kToServer ? lengths.to_server : lengths.to_client;
    for (std::size_t position = 0; position < end; ++position) {
      if (is_preface_token(way, position)) continue;
      SCOPED_TRACE(absl::StrCat(way == Way::kToServer ? "to the server, " : "to the client, ", position));
      Relay relay(store->port(), Relay::flip(way, position, static_cast<char>(1 << position % 8)));
      // A longer record is waited for.
      EXPECT_FALSE(open_store(relay.port(), security, absl::Milliseconds(500)).ok());
    }
  }
  EXPECT_EQ(store->num_keys(), 0);
  EXPECT_TRUE(open_store(store->port(), security).ok());
}

// OpenSSL ignores a few bytes without a meaning, for example the version in the head of the first record. So
// the value that arrives decides.
TEST(ManInTheMiddle, ChangesNothingInTls) {
  const SecurityOptions security = member(Protection::kCertificates);
  const auto store = make_store(security);
  const std::string value(700, 'v');
  int refused = 0;
  int tried = 0;
  for (const Way way : {Way::kToServer, Way::kToClient}) {
    for (std::size_t position = 0; position < 2400; position += 31) {
      SCOPED_TRACE(absl::StrCat(way == Way::kToServer ? "to the server, " : "to the client, ", position));
      ++tried;
      Relay relay(store->port(), Relay::flip(way, position, static_cast<char>(1 << position % 8)));
      const auto client = open_store(relay.port(), security, absl::Milliseconds(1500));
      if (!client.ok()) {
        ++refused;
        continue;
      }
      const std::string key = absl::StrCat("key", tried);
      try {
        (*client)->set(key, value);
        EXPECT_EQ((*client)->get(key), value);
      } catch (const Error&) {
        ++refused;
      }
      if (store->check({key})) EXPECT_EQ(store->get(key), value);
    }
  }
  EXPECT_GT(refused, tried / 2);
  EXPECT_TRUE(open_store(store->port(), security).ok());
}

TEST(ManInTheMiddle, OfTlsReadsNothing) {
  const SecurityOptions security = member(Protection::kCertificates);
  const auto store = make_store(security);
  Relay relay(store->port());
  const auto client = open_store(relay.port(), security);
  ASSERT_TRUE(client.ok()) << client.status();
  (*client)->set("the name of a key", "the value of a secret");
  EXPECT_EQ((*client)->get("the name of a key"), "the value of a secret");
  for (const Way way : {Way::kToServer, Way::kToClient}) {
    const std::string seen = relay.seen(way);
    EXPECT_GT(seen.size(), 500);
    for (const char* secret : {"the name of a key", "the value of a secret", "gradwire://job/member"})
      EXPECT_EQ(seen.find(secret), std::string::npos) << secret;
  }
}

}  // namespace
}  // namespace gradwire
