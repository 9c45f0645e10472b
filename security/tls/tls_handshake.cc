#include "gradwire/security/tls/tls_handshake.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"
#include "gradwire/security/tls/tls_errors.h"
#include "gradwire/security/tls/tls_stream.h"

namespace gradwire::security {
namespace {

// The record of a refusal: "GWa1", the kind, a zero byte, the length of the text in two bytes, the text.
constexpr absl::string_view kMagic = "GWa1";
constexpr size_t kHead = 8;
constexpr char kRefusal = 5;
constexpr size_t kMaxRefusal = 512;
constexpr size_t kShownBytes = 16;

// The types of the records with which a handshake may begin, and the first byte of all versions of TLS.
constexpr char kAlert = 0x15;
constexpr char kHandshake = 0x16;
constexpr char kMajorVersion = 0x03;

absl::Status not_tls(absl::string_view bytes, const std::string& peer) {
  return absl::UnauthenticatedError(
      absl::StrCat("TLS with ", peer, " failed: the peer does not speak TLS: its first bytes are \"",
                   absl::CHexEscape(bytes.substr(0, kShownBytes)),
                   "\"; give both ends certificates, or neither, and check the address"));
}

}  // namespace

std::optional<absl::Status> judge_first_bytes(absl::string_view bytes, bool ended, const std::string& peer) {
  if (bytes.empty()) return std::nullopt;
  if (bytes[0] == kHandshake || bytes[0] == kAlert) {
    if (bytes.size() > 1) return bytes[1] == kMajorVersion ? absl::OkStatus() : not_tls(bytes, peer);
    return ended ? std::make_optional(not_tls(bytes, peer)) : std::nullopt;
  }

  // The head of a refusal, as far as it is there.
  if (bytes.substr(0, kMagic.size()) != kMagic.substr(0, bytes.size())) return not_tls(bytes, peer);
  if (bytes.size() < kHead) return ended ? std::make_optional(not_tls(bytes, peer)) : std::nullopt;
  const size_t size =
      static_cast<unsigned char>(bytes[6]) + 256 * static_cast<size_t>(static_cast<unsigned char>(bytes[7]));
  if (bytes[4] != kRefusal || bytes[5] != 0 || size > kMaxRefusal) return not_tls(bytes, peer);

  if (bytes.size() < kHead + size && !ended) return std::nullopt;
  return absl::UnauthenticatedError(absl::StrCat(
      "TLS with ", peer,
      " failed: the peer refused the connection: ", absl::CHexEscape(bytes.substr(kHead, size))));
}

namespace {

// Far more than any handshake has.
constexpr int kMaxRecords = 1000;
// A part of the peer's first message, which is longer; the rest of a text that is not TLS.
constexpr size_t kFirstBytes = 16;
constexpr size_t kRestOfRefusal = 520;
constexpr size_t kShown = 128;
constexpr char kWelcomeByte = 1;

std::string address(const ConnectionFacts& facts) {
  return facts.peer_address.empty() ? "the peer" : facts.peer_address;
}

std::string with_length(const std::string& protocol) { return static_cast<char>(protocol.size()) + protocol; }

}  // namespace

TlsHandshake::TlsHandshake(Role role, int socket, const ConnectionFacts& facts,
                           std::shared_ptr<const CertificateSet> own)
    : role_(role),
      parts_{
          .socket = socket, .peer_address = address(facts), .purpose = facts.purpose, .own = std::move(own)},
      protocol_(absl::StrCat("gradwire-", facts.purpose, "/1")),
      offered_(with_length(protocol_)),
      ends_{.out = &out_, .max_records = kMaxRecords},
      state_(role == Role::kConnected ? State::kHello : State::kFirstBytes) {
  ERR_clear_error();
  parts_.ssl.reset(SSL_new(parts_.own->context.get()));
  SSL* const ssl = parts_.ssl.get();
  connect_bio(ssl, &ends_);
  set_checks(ssl, this);
  if (role_ == Role::kAccepted) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
    SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(offered_.data()),
                        static_cast<unsigned>(offered_.size()));
  }
}

absl::StatusOr<SocketHandshake::Progress> TlsHandshake::step() {
  if (state_ == State::kFailed) return failure_;
  absl::StatusOr<Progress> progress = go_on();
  if (!progress.ok()) {
    state_ = State::kFailed;
    failure_ = progress.status();
    say_goodbye();
  }
  return progress;
}

absl::StatusOr<SocketHandshake::Progress> TlsHandshake::go_on() {
  while (true) {
    const absl::StatusOr<bool> more_to_do = advance();
    if (!more_to_do.ok()) return more_to_do.status();
    if (!out_.send(parts_.socket)) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Progress::kToWrite;
      send_error_ = errno;
      out_.clear();
    }
    if (state_ == State::kFlushing && send_error_ != 0) return closed(send_error_);
    if (state_ == State::kFlushing) state_ = State::kDone;
    if (state_ == State::kDone) return Progress::kDone;
    if (*more_to_do) continue;
    const absl::StatusOr<bool> received = receive();
    if (!received.ok()) return received.status();
    if (!*received) return Progress::kToRead;
  }
}

absl::StatusOr<bool> TlsHandshake::advance() {
  switch (state_) {
    case State::kHello:
      if (const absl::Status failed = failure_of(SSL_do_handshake(parts_.ssl.get())); !failed.ok())
        return failed;
      state_ = State::kFirstBytes;
      return false;
    case State::kFirstBytes: {
      const std::optional<absl::Status> judged =
          judge_first_bytes(received_.bytes(), ended_, parts_.peer_address);
      if (!judged.has_value()) return false;
      if (!judged->ok()) return *judged;
      state_ = State::kTls;
      return true;
    }
    case State::kTls:
      return advance_tls();
    case State::kWelcome:
      return exchange_welcome();
    default:
      return false;
  }
}

absl::StatusOr<bool> TlsHandshake::advance_tls() {
  ERR_clear_error();
  ends_.in = &received_;
  const int result = SSL_do_handshake(parts_.ssl.get());
  ends_.in = nullptr;
  if (result == 1) {
    const absl::Status finished = check_finished();
    if (!finished.ok()) return finished;
    state_ = State::kWelcome;
    return true;
  }
  if (absl::Status failed = failure_of(result); !failed.ok()) return failed;
  return false;
}

absl::StatusOr<bool> TlsHandshake::exchange_welcome() {
  SSL* const ssl = parts_.ssl.get();
  char welcome = kWelcomeByte;
  ERR_clear_error();
  ends_.in = &received_;
  const int result = role_ == Role::kAccepted ? SSL_write(ssl, &welcome, 1) : SSL_read(ssl, &welcome, 1);
  ends_.in = nullptr;
  if (result == 1) {
    if (welcome != kWelcomeByte) return refuse("the peer sent an unknown welcome; update the older end");
    state_ = State::kFlushing;
    return true;
  }
  if (absl::Status failed = failure_of(result); !failed.ok()) return failed;
  return false;
}

absl::Status TlsHandshake::check_finished() const {
  SSL* const ssl = parts_.ssl.get();
  if (SSL_version(ssl) != TLS1_3_VERSION || SSL_get_verify_result(ssl) != X509_V_OK ||
      SSL_get0_peer_certificate(ssl) == nullptr || peer_.proof != PeerIdentity::Proof::kCertificate) {
    return refuse("the peer did not prove who it is; update it");
  }
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl, &chosen, &size);
  const absl::string_view protocol(reinterpret_cast<const char*>(chosen), size);
  if (protocol == protocol_) return absl::OkStatus();
  return refuse(absl::StrCat("the peer does not say the purpose of the connection: got \"",
                             absl::CHexEscape(protocol.substr(0, kShown)), "\", expected \"", protocol_,
                             "\"; check the address"));
}

bool TlsHandshake::check_certificate(bool valid, X509_STORE_CTX* path) {
  X509* const certificate = X509_STORE_CTX_get_current_cert(path);
  if (!valid || certificate == nullptr) {
    if (refusal_.ok()) refusal_ = refuse(why_not_valid(path, certificate));
    return false;
  }
  if (X509_STORE_CTX_get_error_depth(path) > 0) return true;

  const absl::StatusOr<PeerIdentity> worker = worker_of(certificate);
  if (!worker.ok()) {
    refusal_ = refuse(absl::StrCat("the peer's certificate ", worker.status().message()));
  } else if (worker->job != parts_.own->worker.job) {
    refusal_ = refuse(absl::StrCat("the peer belongs to another job: got \"", worker_uri(*worker),
                                   "\", expected the job \"", parts_.own->worker.job,
                                   "\"; check the address, or give both ends certificates of one job"));
  }
  if (!refusal_.ok()) {
    // The peer receives the alert bad_certificate.
    X509_STORE_CTX_set_error(path, X509_V_ERR_CERT_REJECTED);
    return false;
  }
  peer_ = *worker;
  return true;
}

std::string TlsHandshake::why_not_valid(X509_STORE_CTX* path, X509* certificate) const {
  const int error = X509_STORE_CTX_get_error(path);
  if (certificate == nullptr) return absl::StrCat("the peer ", X509_verify_cert_error_string(error));
  X509* const of_peer = X509_STORE_CTX_get0_cert(path);
  const std::string which =
      certificate == of_peer || of_peer == nullptr
          ? "the peer's certificate "
          : absl::StrCat("in the chain of the peer's certificate ", describe(of_peer), ", the certificate ");
  return absl::StrCat(which, describe(certificate), " ",
                      why_refused(error, certificate, parts_.own->files.authority));
}

absl::string_view TlsHandshake::choose_protocol(absl::string_view offered) {
  for (absl::string_view rest = offered; !rest.empty();) {
    const size_t size = static_cast<unsigned char>(rest[0]);
    const absl::string_view protocol = rest.substr(1, size);
    if (protocol == protocol_) return protocol;
    rest.remove_prefix(1 + protocol.size());
  }
  refusal_ = refuse(absl::StrCat(
      "the peer wants a connection of another purpose: got \"",
      absl::CHexEscape(offered.substr(offered.empty() ? 0 : 1, kShown)), "\", expected \"", protocol_,
      "\"; check the address that the peer connects to, and that both ends run the same "
      "version of Gradwire"));
  return {};
}

absl::StatusOr<bool> TlsHandshake::receive() {
  if (ended_) return closed(0);
  const size_t needed = state_ != State::kFirstBytes ? ends_.wanted
                        : received_.empty()          ? kFirstBytes
                                                     : kRestOfRefusal;
  const ssize_t count = received_.receive(parts_.socket, needed);
  if (count > 0 && received_.received() > kMaxBytes) {
    return refuse(absl::StrCat("the peer's handshake is too long: expected at most ", kMaxBytes,
                               " bytes; shorten its certificate file"));
  }
  if (count >= 0) {
    ended_ = count == 0;
    return true;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) return closed(errno);
  if (send_error_ != 0) return closed(send_error_);
  return false;
}

absl::Status TlsHandshake::failure_of(int result) {
  const int kind = SSL_get_error(parts_.ssl.get(), result);
  const OpenSslError error = take_openssl_error();
  if (kind == SSL_ERROR_WANT_READ) return absl::OkStatus();
  if (!refusal_.ok()) return refusal_;
  if (ends_.too_many_records()) return refuse("the peer sent too many messages; check the address");
  if (kind == SSL_ERROR_ZERO_RETURN) return closed(0);
  return tls_failure(error, parts_.peer_address, parts_.purpose, *parts_.own);
}

absl::Status TlsHandshake::closed(int error) const {
  return absl::UnavailableError(absl::StrCat(
      "TLS with ", parts_.peer_address, " failed: the peer closed the connection during the handshake",
      error != 0 ? absl::StrCat(" (", std::strerror(error), ")") : std::string(),
      "; if it did not end, its log says why, and if it has no certificate, give it one"));
}

absl::Status TlsHandshake::refuse(const std::string& why) const {
  return absl::UnauthenticatedError(absl::StrCat("TLS with ", parts_.peer_address, " failed: ", why));
}

void TlsHandshake::say_goodbye() {
  out_.send(parts_.socket);
  char discarded[4096];
  for (uint64_t size = 0; size < kMaxBytes;) {
    const ssize_t count = ::recv(parts_.socket, discarded, sizeof(discarded), MSG_DONTWAIT);
    if (count <= 0) break;
    size += static_cast<uint64_t>(count);
  }
}

TlsParts TlsHandshake::take_parts() {
  set_checks(parts_.ssl.get(), nullptr);
  return std::move(parts_);
}

std::shared_ptr<SecureStream> TlsHandshake::take_stream() {
  if (state_ != State::kDone || parts_.ssl == nullptr) return nullptr;
  return std::make_shared<TlsStream>(take_parts());
}

}  // namespace gradwire::security
