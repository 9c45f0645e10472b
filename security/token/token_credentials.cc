#include "gradwire/security/token/token_credentials.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/security/message_handshake.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/random_bytes.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_handshake.h"

namespace gradwire::security {
namespace {

// The two addresses of a connection as one end sees them, in a form that both ends write alike:
// "10.0.0.1:80" or "[2001:db8::1]:80". An IPv4-mapped IPv6 address is written as IPv4, because one end may
// use an IPv6 socket and the other one an IPv4 socket. The scope of a link-local address is left out, because
// it is a number of the host. Empty for sockets without such addresses (Unix sockets).
struct SocketAddresses {
  std::string own;
  std::string peer;
};

std::string canonical(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
    ::inet_ntop(AF_INET, in6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(in6.sin6_port));
}

std::string address_by(int (*call)(int, sockaddr*, socklen_t*), int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  return call(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? canonical(address) : "";
}

int own_name(int socket, sockaddr* address, socklen_t* size) { return ::getsockname(socket, address, size); }
int peer_name(int socket, sockaddr* address, socklen_t* size) { return ::getpeername(socket, address, size); }

// The addresses of a connected socket; empty ones if the connection has ended.
SocketAddresses socket_addresses(int socket) {
  return {address_by(own_name, socket), address_by(peer_name, socket)};
}

// TokenHandshake over messages, each of which is one record. Not thread-safe.
class TokenMessageHandshake : public MessageHandshake {
 public:
  // `key`: handshake_key().
  TokenMessageHandshake(const Secret& key, TokenHandshake::Options options)
      : handshake_(key, std::move(options)) {
    identity_.proof = PeerIdentity::Proof::kToken;
  }

  Reaction start() override { return take(handshake_.start()); }
  Reaction receive(absl::string_view message) override;
  const PeerIdentity& peer() const override { return identity_; }

 private:
  Reaction take(TokenHandshake::Reaction reaction);

  TokenHandshake handshake_;
  PeerIdentity identity_;
};

MessageHandshake::Reaction TokenMessageHandshake::receive(absl::string_view message) {
  RecordParser parser;
  const absl::StatusOr<std::size_t> taken = parser.add(message);
  if (!taken.ok()) return take(handshake_.receive_garbage(taken.status().message()));
  if (!parser.complete() || *taken != message.size()) {
    return take(
        handshake_.receive_garbage("malformed record of the handshake: its message has another length"));
  }
  return take(handshake_.receive(parser.take()));
}

MessageHandshake::Reaction TokenMessageHandshake::take(TokenHandshake::Reaction reaction) {
  if (reaction.done) identity_.name = handshake_.peer_name();
  return {.send = reaction.send.has_value() ? reaction.send->encode() : "",
          .done = reaction.done,
          .failure = std::move(reaction.failure)};
}

// TokenHandshake over a non-blocking socket.
class TokenSocketHandshake : public SocketHandshake {
 public:
  TokenSocketHandshake(int socket, const Secret& key, TokenHandshake::Options options)
      : socket_(socket), peer_(options.peer), handshake_(key, std::move(options)) {
    identity_.proof = PeerIdentity::Proof::kToken;
    react(handshake_.start());
  }

  absl::StatusOr<Progress> step() override;
  const PeerIdentity& peer() const override { return identity_; }
  std::shared_ptr<SecureStream> take_stream() override { return nullptr; }

 private:
  // Sends bytes of `output_` as far as there is room. Returns whether nothing is left to send.
  absl::StatusOr<bool> flush();
  // Reads bytes of the next record and handles it. Returns false if no byte is there.
  absl::StatusOr<bool> read_record();
  void react(TokenHandshake::Reaction reaction);
  absl::Status closed(absl::string_view how) const;

  const int socket_;
  const std::string peer_;
  TokenHandshake handshake_;
  RecordParser parser_;
  PeerIdentity identity_;
  // The bytes that are not sent yet.
  std::string output_;
  bool received_any_ = false;
  bool done_ = false;
  // The first failure, which stays.
  absl::Status failure_;
};

absl::StatusOr<SocketHandshake::Progress> TokenSocketHandshake::step() {
  while (failure_.ok()) {
    // 1. The last record of the server is sent after the handshake is done for it.
    absl::StatusOr<bool> flushed = flush();
    if (!flushed.ok()) {
      failure_ = flushed.status();
      break;
    }
    if (!*flushed) return Progress::kToWrite;
    if (done_) return Progress::kDone;
    // 2. The peer's next record, which may add to the output.
    absl::StatusOr<bool> read = read_record();
    if (!read.ok()) {
      failure_ = read.status();
      break;
    }
    if (!*read) return Progress::kToRead;
  }
  return failure_;
}

absl::StatusOr<bool> TokenSocketHandshake::flush() {
  while (!output_.empty()) {
    const ssize_t sent = ::send(socket_, output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      output_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      // The peer has closed the connection, maybe after a refusal that says why. The handshake cannot end
      // well: the next read finds the refusal, or the end.
      output_.clear();
      if (done_) return closed(errno_status("the connection ended", errno).message());
    } else if (errno != EINTR) {
      return closed(errno_status("cannot send", errno).message());
    }
  }
  return true;
}

absl::StatusOr<bool> TokenSocketHandshake::read_record() {
  while (!parser_.complete()) {
    char bytes[Record::kMaxBody];
    const std::size_t wanted = std::min(parser_.wanted(), sizeof(bytes));
    const ssize_t got = ::recv(socket_, bytes, wanted, MSG_DONTWAIT);
    if (got == 0) return closed("the peer closed the connection");
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      if (errno == EINTR) continue;
      return closed(errno_status("cannot receive", errno).message());
    }
    received_any_ = true;
    const absl::StatusOr<std::size_t> taken = parser_.add({bytes, static_cast<std::size_t>(got)});
    if (!taken.ok()) {
      react(handshake_.receive_garbage(taken.status().message()));
      return true;
    }
  }
  react(handshake_.receive(parser_.take()));
  return true;
}

void TokenSocketHandshake::react(TokenHandshake::Reaction reaction) {
  if (reaction.send) output_ += reaction.send->encode();
  done_ = reaction.done;
  if (done_) identity_.name = handshake_.peer_name();
  if (reaction.failure.ok()) return;
  // One attempt: the peer's next step has the deadline of its own handshake.
  if (!output_.empty()) ::send(socket_, output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  failure_ = std::move(reaction.failure);
}

absl::Status TokenSocketHandshake::closed(absl::string_view how) const {
  return absl::UnavailableError(absl::StrCat(
      "the handshake with ", peer_, " failed: ", how, received_any_ ? "" : " before it sent anything",
      "; read the log of that process",
      received_any_ ? "" : ", and check that it runs the same version of Gradwire with a token"));
}

class TokenCredentials : public Credentials {
 public:
  TokenCredentials(Secret key, bool check_addresses)
      : key_(std::move(key)), check_addresses_(check_addresses) {}

  Kind kind() const override { return Kind::kToken; }
  std::unique_ptr<SocketHandshake> connected(int socket, const ConnectionFacts& facts) const override {
    return over_socket(TokenHandshake::Role::kClient, socket, facts);
  }
  std::unique_ptr<SocketHandshake> accepted(int socket, const ConnectionFacts& facts) const override {
    return over_socket(TokenHandshake::Role::kServer, socket, facts);
  }
  std::unique_ptr<MessageHandshake> for_messages(const MessageChannel& channel,
                                                 const ConnectionFacts& facts) const override {
    return std::make_unique<TokenMessageHandshake>(
        key_, options(channel.accepted ? TokenHandshake::Role::kServer : TokenHandshake::Role::kClient,
                      {channel.own_address, channel.peer_address}, facts));
  }

 private:
  std::unique_ptr<SocketHandshake> over_socket(TokenHandshake::Role role, int socket,
                                               const ConnectionFacts& facts) const {
    return std::make_unique<TokenSocketHandshake>(socket, key_,
                                                  options(role, socket_addresses(socket), facts));
  }

  TokenHandshake::Options options(TokenHandshake::Role role, SocketAddresses addresses,
                                  const ConnectionFacts& facts) const {
    std::string peer = !facts.peer_address.empty() ? facts.peer_address
                       : !addresses.peer.empty()   ? addresses.peer
                                                   : "the peer";
    return {.role = role,
            .purpose = facts.purpose,
            .name = facts.own_name,
            .own_address = std::move(addresses.own),
            .peer_address = std::move(addresses.peer),
            .check_addresses = check_addresses_,
            .nonce = random_bytes(TokenHandshake::kNonceBytes),
            .peer = std::move(peer)};
  }

  const Secret key_;
  const bool check_addresses_;
};

}  // namespace

absl::StatusOr<CredentialsPtr> make_token_credentials(const Secret& token, bool check_addresses) {
  GRADWIRE_RETURN_IF_ERROR(check_token_size("the token", token));
  return std::make_shared<const TokenCredentials>(handshake_key(token), check_addresses);
}

}  // namespace gradwire::security
