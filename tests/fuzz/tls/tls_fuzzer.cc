// Lets the input act on the TLS handshake, and on the stream behind it. The first byte of the input says how:
//
//   0, 1  The rest of the input is all that a server, or a client, receives. It must refuse it.
//   2     The rest is a list of changes, of four bytes each, to the bytes that two honest ends exchange:
//         direction and kind, the position (2 bytes), a value. No end may take the other one for somebody
//         else, and what they read must be what they wrote.

#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::Descriptor;
using gradwire::fuzzing::Input;
using gradwire::fuzzing::require;
using gradwire::security::CredentialsPtr;
using gradwire::security::SecureStream;
using gradwire::security::SocketHandshake;
using gradwire::security::TestAuthority;
using Progress = SocketHandshake::Progress;

struct Workers {
  CredentialsPtr client;
  CredentialsPtr server;
};

const Workers& workers() {
  // The credentials do not read the files again, which are gone.
  const auto never = [](const std::function<void()>&) { return std::shared_ptr<void>(); };
  static const Workers* const made = [&] {
    const TestAuthority authority;
    return new Workers{*make_certificate_credentials(authority.worker("job", "client"), never),
                       *make_certificate_credentials(authority.worker("job", "server"), never)};
  }();
  return *made;
}

struct Sockets {
  Sockets() {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    own = Descriptor(ends[0]);
    network = Descriptor(ends[1]);
  }
  Descriptor own;
  Descriptor network;
};

void check_error(const absl::Status& error) {
  require(absl::IsUnauthenticated(error) || absl::IsUnavailable(error), "an error of another code");
  const absl::string_view message = error.message();
  require(!message.empty() && message.size() < 4096, "an error without a sentence, or with an endless one");
  for (const char c : message) {
    require(absl::ascii_isprint(static_cast<unsigned char>(c)), "an error that shows bytes unescaped");
  }
}

// One end whose peer is the input.
void attack(const std::string& bytes, bool server) {
  Sockets sockets;
  const std::unique_ptr<SocketHandshake> end =
      server ? workers().server->accepted(sockets.own.get(), {"rpc", "server", "client:1"})
             : workers().client->connected(sockets.own.get(), {"rpc", "client", "server:1"});
  size_t sent = 0;
  bool shut = false;
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<Progress> progress = end->step();
    if (!progress.ok()) {
      check_error(progress.status());
      return;
    }
    require(*progress != Progress::kDone, "a peer without a key is accepted");
    const ssize_t count = sent < bytes.size() ? ::send(sockets.network.get(), bytes.data() + sent,
                                                       bytes.size() - sent, MSG_NOSIGNAL)
                                              : 0;
    if (count > 0) sent += static_cast<size_t>(count);
    if (sent == bytes.size() && !std::exchange(shut, true)) ::shutdown(sockets.network.get(), SHUT_WR);
  }
  require(false, "a handshake goes on behind the end of the connection");
}

struct Change {
  enum class Kind { kFlip, kInsert, kErase, kCut };
  Kind kind;
  size_t position;
  char value;
};

// One direction of a network that changes bytes.
class Direction {
 public:
  Direction(int from, int to) : from_(from), to_(to) {}
  void add(const Change& change) { changes_.push_back(change); }

  void pass() {
    char bytes[4096];
    ssize_t count = 0;
    while (!cut_ && (count = ::recv(from_, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
      std::string changed;
      for (ssize_t i = 0; i < count && !cut_; ++i, ++passed_) apply(bytes[i], changed);
      if (!changed.empty()) ::send(to_, changed.data(), changed.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (cut_) ::shutdown(to_, SHUT_WR);
  }

 private:
  void apply(char byte, std::string& result) {
    bool erased = false;
    for (const Change& change : changes_) {
      if (change.position != passed_) continue;
      switch (change.kind) {
        case Change::Kind::kFlip:
          byte = static_cast<char>(byte ^ change.value);
          break;
        case Change::Kind::kInsert:
          result.push_back(change.value);
          break;
        case Change::Kind::kErase:
          erased = true;
          break;
        case Change::Kind::kCut:
          cut_ = true;
          return;
      }
    }
    if (!erased) result.push_back(byte);
  }

  const int from_;
  const int to_;
  std::vector<Change> changes_;
  size_t passed_ = 0;
  bool cut_ = false;
};

// Writes a text once, and checks that what arrives is its peer's text, or the beginning of it.
class Talk {
 public:
  Talk(std::shared_ptr<SecureStream> stream, std::string own, std::string other)
      : stream_(std::move(stream)), own_(std::move(own)), other_(std::move(other)) {}

  void go_on() {
    if (!own_.empty()) {
      const iovec piece{own_.data(), own_.size()};
      const ssize_t count = stream_->write({&piece, 1});
      if (count > 0) own_.erase(0, static_cast<size_t>(count));
    }
    std::string part(300, '\0');
    const iovec place{part.data(), part.size()};
    const ssize_t count = stream_->read({&place, 1});
    if (count > 0) read_.append(part, 0, static_cast<size_t>(count));
    if (count < 0 && errno == EPROTO) check_error(stream_->failure());
    require(other_.compare(0, read_.size(), read_) == 0, "other bytes arrive than were written");
  }
  bool done() const { return read_ == other_; }

 private:
  const std::shared_ptr<SecureStream> stream_;
  std::string own_;
  const std::string other_;
  std::string read_;
};

void change(Input& input) {
  Sockets client_sockets;
  Sockets server_sockets;
  Direction forth(client_sockets.network.get(), server_sockets.network.get());
  Direction back(server_sockets.network.get(), client_sockets.network.get());
  bool unchanged = input.empty();
  while (!input.empty()) {
    const auto kind = input.number(1);
    const size_t position = input.number(2) % 4096;
    const char value = static_cast<char>(input.number(1));
    (kind % 2 == 0 ? forth : back).add({static_cast<Change::Kind>(kind / 2 % 4), position, value});
  }

  const std::unique_ptr<SocketHandshake> client =
      workers().client->connected(client_sockets.own.get(), {"rpc", "client", "server:1"});
  const std::unique_ptr<SocketHandshake> server =
      workers().server->accepted(server_sockets.own.get(), {"rpc", "server", "client:1"});
  absl::StatusOr<Progress> client_result = Progress::kToRead;
  absl::StatusOr<Progress> server_result = Progress::kToRead;
  const auto goes_on = [](const absl::StatusOr<Progress>& result) {
    return result.ok() && *result != Progress::kDone;
  };
  for (int i = 0; i < 20 && (goes_on(client_result) || goes_on(server_result)); ++i) {
    if (goes_on(client_result)) client_result = client->step();
    forth.pass();
    if (goes_on(server_result)) server_result = server->step();
    back.pass();
  }
  if (!client_result.ok()) check_error(client_result.status());
  if (!server_result.ok()) check_error(server_result.status());
  const bool client_done = client_result.ok() && *client_result == Progress::kDone;
  const bool server_done = server_result.ok() && *server_result == Progress::kDone;
  require(!unchanged || (client_done && server_done), "an honest handshake fails");
  if (client_done) require(client->peer().name == "server", "the client takes its peer for somebody else");
  if (server_done) require(server->peer().name == "client", "the server takes its peer for somebody else");
  if (!client_done || !server_done) return;

  const std::string request(500, 'q');
  const std::string answer(700, 'a');
  Talk asking(client->take_stream(), request, answer);
  Talk answering(server->take_stream(), answer, request);
  for (int i = 0; i < 20; ++i) {
    asking.go_on();
    forth.pass();
    answering.go_on();
    back.pass();
  }
  require(!unchanged || (asking.done() && answering.done()), "an honest exchange fails");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Input input(data, size);
  const uint64_t way = input.number(1) % 3;
  if (way == 2) {
    change(input);
  } else {
    attack(input.rest(), way == 0);
  }
  return 0;
}
