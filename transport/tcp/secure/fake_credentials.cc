#include "gradwire/transport/tcp/secure/fake_credentials.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/secure_stream.h"

namespace gradwire::transport {
namespace {

using security::PeerIdentity;

constexpr std::size_t kGreetingBytes = 64;

char mask_at(std::size_t position) { return static_cast<char>(position * 7 + 13); }

// Few bytes at first, so that small messages are cut too, then more, so that large ones do not take long.
std::size_t step_at(std::size_t position) {
  if (position < 300) return 1 + position % 7;
  return position < 100'000 ? 1 + position % 4'099 : std::size_t{64} << 10;
}

class FakeStream : public security::SecureStream {
 public:
  FakeStream(int socket, const FakeCredentialsOptions& options) : socket_(socket), options_(options) {}

  ssize_t read(absl::Span<const iovec> places) override {
    if (read_ >= options_.read_fails_after) return fail();
    if (ahead_at_ == ahead_.size()) {
      ahead_.resize(std::size_t{32} << 10);
      ahead_at_ = 0;
      const ssize_t got = ::recv(socket_, ahead_.data(), ahead_.size(), MSG_DONTWAIT);
      const int error = errno;
      ahead_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
      errno = error;
      if (got <= 0) return got;
    }
    std::size_t left =
        std::min({step_at(read_), ahead_.size() - ahead_at_, options_.read_fails_after - read_});
    std::size_t total = 0;
    for (const iovec& place : places) {
      const std::size_t size = std::min(left, place.iov_len);
      for (std::size_t i = 0; i < size; ++i) {
        static_cast<char*>(place.iov_base)[i] = static_cast<char>(ahead_[ahead_at_++] ^ mask_at(read_++));
      }
      total += size;
      left -= size;
    }
    return static_cast<ssize_t>(total);
  }

  ssize_t write(absl::Span<const iovec> pieces) override {
    if (written_ >= options_.write_fails_after) return fail();
    if (without_memory_ < options_.writes_without_memory && !std::exchange(failed_last_, !failed_last_)) {
      ++without_memory_;
      errno = ENOBUFS;
      return -1;
    }
    std::size_t left = std::min(step_at(written_), options_.write_fails_after - written_);
    std::vector<char> bytes;
    bytes.reserve(left);
    for (const iovec& piece : pieces) {
      const std::size_t size = std::min(left, piece.iov_len);
      for (std::size_t i = 0; i < size; ++i) {
        bytes.push_back(static_cast<char>(static_cast<const char*>(piece.iov_base)[i] ^
                                          mask_at(written_ + bytes.size())));
      }
      left -= size;
    }
    const ssize_t result = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result > 0) written_ += static_cast<std::size_t>(result);
    return result;
  }

  void end_writes() override {}
  absl::Status failure() const override { return absl::UnauthenticatedError("the fake stream broke"); }

 private:
  static ssize_t fail() {
    errno = EPROTO;
    return -1;
  }

  const int socket_;
  const FakeCredentialsOptions options_;
  std::vector<char> ahead_;
  std::size_t ahead_at_ = 0;
  std::size_t read_ = 0;
  std::size_t written_ = 0;
  int without_memory_ = 0;
  bool failed_last_ = false;
};

class FakeHandshake : public security::SocketHandshake {
 public:
  FakeHandshake(int socket, const FakeCredentialsOptions& options, const security::ConnectionFacts& facts,
                bool server)
      : socket_(socket),
        options_(options),
        greeting_(fake_greeting(options.password, facts)),
        server_(server) {}

  // As in other handshakes, the server sends last.
  absl::StatusOr<Progress> step() override {
    if (!server_) {
      GRADWIRE_ASSIGN_OR_RETURN(const Progress sent, send());
      if (sent != Progress::kDone) return sent;
    }
    GRADWIRE_ASSIGN_OR_RETURN(const Progress received, receive());
    if (received != Progress::kDone || !server_) return received;
    return send();
  }
  const PeerIdentity& peer() const override { return peer_; }
  std::shared_ptr<security::SecureStream> take_stream() override {
    return options_.has_stream ? std::make_shared<FakeStream>(socket_, options_) : nullptr;
  }

 private:
  absl::StatusOr<Progress> send() {
    while (sent_ < greeting_.size()) {
      const ssize_t result = ::send(socket_, greeting_.data() + sent_, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (result < 0 && errno == EAGAIN) return Progress::kToWrite;
      if (result < 0) return absl::UnavailableError(std::strerror(errno));
      ++sent_;
    }
    return Progress::kDone;
  }

  absl::StatusOr<Progress> receive() {
    while (received_.size() < kGreetingBytes) {
      char byte;
      const ssize_t result = ::recv(socket_, &byte, 1, MSG_DONTWAIT);
      if (result == 0) return absl::UnavailableError("the peer closed the connection during the handshake");
      if (result < 0 && errno == EAGAIN) return Progress::kToRead;
      if (result < 0) return absl::UnavailableError(std::strerror(errno));
      received_.push_back(byte);
    }
    const std::size_t end = received_.find('/');
    if (received_.substr(0, std::min(end, kGreetingBytes)) != options_.password)
      return absl::UnauthenticatedError("the peer has the wrong password");
    peer_.proof = options_.kind == security::Credentials::Kind::kToken ? PeerIdentity::Proof::kToken
                                                                       : PeerIdentity::Proof::kCertificate;
    peer_.name = received_.substr(end + 1);
    peer_.name.resize(std::min(peer_.name.find('\0'), peer_.name.size()));
    return Progress::kDone;
  }

  const int socket_;
  const FakeCredentialsOptions options_;
  const std::string greeting_;
  const bool server_;
  std::size_t sent_ = 0;
  std::string received_;
  PeerIdentity peer_;
};

class FakeCredentials : public security::Credentials {
 public:
  explicit FakeCredentials(FakeCredentialsOptions options) : options_(std::move(options)) {}

  Kind kind() const override { return options_.kind; }
  std::unique_ptr<security::SocketHandshake> connected(
      int socket, const security::ConnectionFacts& facts) const override {
    return std::make_unique<FakeHandshake>(socket, options_, facts, /*server=*/false);
  }
  std::unique_ptr<security::SocketHandshake> accepted(int socket,
                                                      const security::ConnectionFacts& facts) const override {
    return std::make_unique<FakeHandshake>(socket, options_, facts, /*server=*/true);
  }

 private:
  const FakeCredentialsOptions options_;
};

}  // namespace

std::string fake_greeting(const std::string& password, const security::ConnectionFacts& facts) {
  std::string greeting = absl::StrCat(password, "/", facts.own_name);
  greeting.resize(kGreetingBytes);
  return greeting;
}

security::CredentialsPtr fake_credentials(FakeCredentialsOptions options) {
  return std::make_shared<FakeCredentials>(std::move(options));
}

}  // namespace gradwire::transport
