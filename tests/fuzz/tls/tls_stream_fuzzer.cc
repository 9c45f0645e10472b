// A stream of TLS whose peer has a certificate of the job, and does with it what it likes. The handshake is
// honest. The first byte of the input says whether the peer is the client; a list of the peer's actions
// follows, with the moments at which the network delivers some of its bytes, and at which the stream is read
// and written.
//
// The stream must return exactly the bytes that the peer has written, however its records are cut and
// delivered, up to the first byte that TLS does not allow. Then it must fail, with a sentence, and stay
// failed.

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/raw_peer.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::Descriptor;
using gradwire::fuzzing::Input;
using gradwire::fuzzing::require;
using gradwire::security::CredentialsPtr;
using gradwire::security::RawPeer;
using gradwire::security::SecureStream;
using gradwire::security::SocketHandshake;
using gradwire::security::TestAuthority;
using Progress = SocketHandshake::Progress;

constexpr std::size_t kMaxRecord = 20'000;
// One message without data counts twice: as a record and as a message. The stream allows 32 in a row.
constexpr int kCertainlyAllowed = 10;

struct Workers {
  CredentialsPtr own;
  TestAuthority::Pem peer;
};

const Workers& workers() {
  // The credentials do not read the files again, which are gone.
  const auto never = [](const std::function<void()>&) { return std::shared_ptr<void>(); };
  static const Workers* const made = [&] {
    const TestAuthority authority;
    return new Workers{*make_certificate_credentials(authority.worker("job", "own"), never),
                       authority.issue({.uris = {"gradwire://job/peer"}})};
  }();
  return *made;
}

struct Sockets {
  Sockets() {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    end = Descriptor(ends[0]);
    network = Descriptor(ends[1]);
  }
  Descriptor end;
  Descriptor network;
};

// The byte at this position of either direction.
char byte_at(std::size_t position) { return static_cast<char>(position * 7 + position / 251); }

std::string text_at(std::size_t position, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = byte_at(position + i);
  return text;
}

// Takes the text at `position`, which moves behind it.
void check_text(const char* bytes, std::size_t size, std::size_t* position) {
  require(text_at(*position, size).compare(0, size, bytes, size) == 0, "other bytes arrive than were sent");
  *position += size;
}

class Attack {
 public:
  explicit Attack(bool peer_is_client)
      : raw_(peer_is_client ? RawPeer::Role::kClient : RawPeer::Role::kServer, far_.end.get(),
             &workers().peer),
        own_(peer_is_client ? workers().own->accepted(near_.end.get(), {"rpc", "own", "peer:1"})
                            : workers().own->connected(near_.end.get(), {"rpc", "own", "peer:1"})) {
    SSL_CTX_set_options(raw_.context(), SSL_OP_NO_TICKET);
    bool raw_done = false;
    bool welcomed = false;
    absl::StatusOr<Progress> progress = Progress::kToRead;
    for (int i = 0; i < 50 && *progress != Progress::kDone; ++i) {
      raw_done = raw_done || raw_.step();
      welcomed = welcomed || (raw_done && raw_.welcome());
      deliver(1 << 20);
      progress = own_->step();
      require(progress.ok(), "an honest handshake fails");
      deliver_answers();
    }
    require(*progress == Progress::kDone && own_->peer().name == "peer", "the handshake does not end");
    if (!welcomed) require(raw_.welcome(), "no welcome");
    deliver(1 << 20);
    stream_ = own_->take_stream();
  }

  void act(Input& input) {
    switch (const uint64_t action = input.number(1); action % 10) {
      case 0:
        return send_data(input.number(2) % kMaxRecord);
      case 1:
        return send_data(input.number(1) % 8);
      case 2:
        return send_new_key(action < 128);
      case 3:
        return send_plain(input.text(input.number(1)));
      case 4: {
        // The head of a record that announces a size, and some of its bytes.
        const uint64_t size = input.number(2);
        const std::string head = {0x17, 3, 3, static_cast<char>(size / 256), static_cast<char>(size)};
        return send_plain(head + std::string(std::min<uint64_t>(size, 600), 'x'));
      }
      case 5:
        return deliver(input.number(2));
      case 6:
        return read(input);
      case 7:
        return write(input.number(2) % kMaxRecord);
      case 8:
        return end_peer();
      case 9:
        deliver(1 << 20);
        return read(input);
    }
  }

  // All that was sent arrives, and is read.
  void finish() {
    for (int i = 0; i < 10'000 && !over_; ++i) {
      raw_.send();
      const bool more = pending();
      deliver(1 << 20);
      const std::size_t before = read_;
      read_some({8192});
      if (!more && read_ == before) break;
    }
    require(spoiled_ || over_ || read_ == sent_, "bytes are lost");
    if (failed_) check_failed();
    stream_.reset();
  }

 private:
  void send_data(std::size_t size) {
    if (ended_ || size == 0) return;
    const std::string text = text_at(sent_, size);
    const int written = SSL_write(raw_.ssl(), text.data(), static_cast<int>(size));
    ERR_clear_error();
    raw_.send();
    // Nobody reads what comes behind a spoiled record.
    if (written > 0 && !spoiled_) sent_ += static_cast<std::size_t>(written);
  }

  void send_new_key(bool asks_for_one) {
    if (ended_) return;
    SSL_key_update(raw_.ssl(), asks_for_one ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
    SSL_do_handshake(raw_.ssl());
    ERR_clear_error();
    raw_.send();
    ++controls_;
  }

  // Bytes that the peer has not encrypted. They stand between two records only if nothing waits to be sent.
  void send_plain(const std::string& bytes) {
    if (bytes.empty() || raw_.unsent() > 0) return;
    if (::send(far_.end.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) spoiled_ = true;
  }

  void end_peer() {
    if (ended_) return;
    ended_ = true;
    SSL_shutdown(raw_.ssl());
    ERR_clear_error();
    raw_.send();
  }

  void deliver(std::size_t size) { pass(far_.network.get(), near_.network.get(), size); }
  void deliver_answers() { pass(near_.network.get(), far_.network.get(), 1 << 20); }
  static void pass(int from, int to, std::size_t size) {
    char bytes[4096];
    while (size > 0) {
      const std::size_t most = std::min(size, sizeof(bytes));
      const ssize_t peeked = ::recv(from, bytes, most, MSG_PEEK);
      if (peeked <= 0) return;
      const ssize_t sent = ::send(to, bytes, static_cast<std::size_t>(peeked), MSG_NOSIGNAL);
      if (sent <= 0) return;
      require(::recv(from, bytes, static_cast<std::size_t>(sent), 0) == sent, "recv");
      size -= static_cast<std::size_t>(sent);
    }
  }
  bool pending() {
    char byte;
    return raw_.unsent() > 0 || ::recv(far_.network.get(), &byte, 1, MSG_PEEK) > 0;
  }

  void read(Input& input) {
    std::vector<std::size_t> sizes;
    for (uint64_t count = 1 + input.number(1) % 4; count > 0; --count)
      sizes.push_back(input.number(2) % 9000);
    sizes.push_back(1);
    read_some(sizes);
  }

  void read_some(const std::vector<std::size_t>& sizes) {
    std::vector<std::string> memory;
    std::vector<iovec> places;
    for (const std::size_t size : sizes) memory.emplace_back(size, '\0');
    for (std::string& part : memory) places.push_back({part.data(), part.size()});
    const ssize_t count = stream_->read(places);
    if (count > 0) {
      require(!over_, "bytes arrive behind the end");
      std::size_t remaining = static_cast<std::size_t>(count);
      for (const std::string& part : memory) {
        const std::size_t here = std::min(remaining, part.size());
        check_text(part.data(), here, &read_);
        remaining -= here;
      }
      require(remaining == 0, "more bytes than there is room");
      require(read_ <= sent_, "more bytes arrive than were sent");
    } else if (count == 0) {
      require(ended_ && (read_ == sent_ || spoiled_), "the end comes too early");
      over_ = true;
    } else if (errno == EPROTO) {
      require(spoiled_ || controls_ > kCertainlyAllowed, "an honest stream fails");
      over_ = failed_ = true;
    } else {
      require(errno == EAGAIN, "an error of another kind");
    }
  }

  void write(std::size_t size) {
    if (size == 0) return;
    const std::string text = text_at(written_, size);
    const iovec piece{const_cast<char*>(text.data()), size};
    const ssize_t count = stream_->write({&piece, 1});
    if (count < 0 && errno == EPROTO) {
      require(spoiled_ || controls_ > kCertainlyAllowed, "an honest stream fails in a write");
      over_ = failed_ = true;
    }
    if (count <= 0) return;
    written_ += static_cast<std::size_t>(count);
    // The peer reads all that has arrived.
    for (int i = 0; i < 100 && arrived_ < written_; ++i) {
      deliver_answers();
      raw_.step();
      std::string part(kMaxRecord, '\0');
      int read = 0;
      while ((read = SSL_read(raw_.ssl(), part.data(), static_cast<int>(part.size()))) > 0)
        check_text(part.data(), static_cast<std::size_t>(read), &arrived_);
      const bool goes_on = SSL_get_error(raw_.ssl(), read) == SSL_ERROR_WANT_READ;
      ERR_clear_error();
      if (!goes_on) break;
    }
    require(arrived_ == written_ || failed_, "written bytes do not arrive");
  }

  void check_failed() {
    const absl::Status failure = stream_->failure();
    require(absl::IsUnauthenticated(failure) || absl::IsUnavailable(failure), "an error of another code");
    require(!failure.message().empty() && failure.message().size() < 4096, "an endless sentence");
    for (const char c : failure.message())
      require(absl::ascii_isprint(static_cast<unsigned char>(c)), "an error that shows bytes unescaped");
    char byte = 'x';
    const iovec piece{&byte, 1};
    require(stream_->read({&piece, 1}) < 0 && errno == EPROTO, "a failed stream can be read");
    require(stream_->write({&piece, 1}) < 0 && errno == EPROTO, "a failed stream can be written");
  }

  // The peer is at the far end of the network.
  Sockets far_;
  Sockets near_;
  RawPeer raw_;
  const std::unique_ptr<SocketHandshake> own_;
  std::shared_ptr<SecureStream> stream_;

  // The bytes that the peer has sent before anything that TLS does not allow, and those that were read.
  std::size_t sent_ = 0;
  std::size_t read_ = 0;
  std::size_t written_ = 0;
  std::size_t arrived_ = 0;
  int controls_ = 0;
  bool spoiled_ = false;
  bool ended_ = false;
  bool over_ = false;
  bool failed_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Input input(data, size);
  Attack attack(input.number(1) % 2 == 0);
  for (int i = 0; i < 60 && !input.empty(); ++i) attack.act(input);
  attack.finish();
  return 0;
}
