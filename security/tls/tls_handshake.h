#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/tls/byte_buffers.h"
#include "gradwire/security/tls/certificates/certificate_set.h"
#include "gradwire/security/tls/certificates/handshake_checks.h"
#include "gradwire/security/tls/tls_parts.h"

namespace gradwire::security {

// Judges the first bytes that the peer of a TLS handshake has sent, before OpenSSL sees them. `ended`: no
// more bytes follow. Returns OK if they are TLS; an Unauthenticated error that describes what the peer speaks
// instead; nothing if more bytes are needed. A refusal of Gradwire's own, which a server sends to a client
// with other credentials, is shown, escaped.
std::optional<absl::Status> judge_first_bytes(absl::string_view bytes, bool ended, const std::string& peer);

// The TLS handshake of one end. Each end checks the other one's certificate. The application protocol (ALPN)
// is "gradwire-PURPOSE/1".
//
// In TLS 1.3 a client has finished before the server has checked the client's certificate. So the server ends
// the handshake with one byte, the welcome. Until it arrives the client sends nothing, so that the reason of
// a refusal reaches it: data that the server has not read when it closes the connection would make the kernel
// discard the reason on its way.
//
// Not thread-safe.
class TlsHandshake final : public SocketHandshake, private HandshakeChecks {
 public:
  enum class Role : uint8_t { kConnected, kAccepted };

  // The bytes that a peer may send for a handshake.
  static constexpr uint64_t kMaxBytes = uint64_t{128} << 10;

  TlsHandshake(Role role, int socket, const ConnectionFacts& facts,
               std::shared_ptr<const CertificateSet> own);

  absl::StatusOr<Progress> step() override;
  const PeerIdentity& peer() const override { return peer_; }
  std::shared_ptr<SecureStream> take_stream() override;
  // After kDone, instead of take_stream().
  TlsParts take_parts();

 private:
  enum class State : uint8_t {
    // The client has not written its first message yet.
    kHello,
    // The peer has not shown yet that it speaks TLS.
    kFirstBytes,
    kTls,
    kWelcome,
    // The last bytes may wait for room in the socket.
    kFlushing,
    kDone,
    kFailed,
  };

  bool check_certificate(bool valid, X509_STORE_CTX* path) override;
  absl::string_view choose_protocol(absl::string_view offered) override;

  absl::StatusOr<Progress> go_on();
  // Processes what has arrived. Returns whether there is more to do before more bytes arrive.
  absl::StatusOr<bool> advance();
  absl::StatusOr<bool> advance_tls();
  absl::StatusOr<bool> exchange_welcome();
  // Checks what OpenSSL does not.
  absl::Status check_finished() const;
  // Receives what the next step needs, and no byte of the stream behind the handshake. Returns false if
  // nothing has arrived yet.
  absl::StatusOr<bool> receive();
  // The reason why a call of OpenSSL failed. OK: it needs more bytes.
  absl::Status failure_of(int result);
  std::string why_not_valid(X509_STORE_CTX* path, X509* certificate) const;
  absl::Status closed(int error) const;
  absl::Status refuse(const std::string& why) const;
  // Sends the alert, and discards what has arrived, because the kernel would discard the alert otherwise.
  void say_goodbye();

  const Role role_;
  TlsParts parts_;
  const std::string protocol_;
  // With its length before it, as in messages.
  const std::string offered_;
  ReceivedBytes received_;
  BytesToSend out_;
  BioEnds ends_;
  State state_;
  // The peer sends no more bytes.
  bool ended_ = false;
  // Why sending failed, or 0. The peer's reason may still be in the receive buffer.
  int send_error_ = 0;
  PeerIdentity peer_;
  // Why a check refused the peer.
  absl::Status refusal_;
  // The result of a failed handshake.
  absl::Status failure_;
};

}  // namespace gradwire::security
