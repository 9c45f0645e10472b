// Sends the input to the port of a tcp transport, over a real socket, as a process that has no credentials.
// The first byte chooses the proof that the transport demands: 0 a token, 1 a certificate, 2 none. The second
// byte is the size of the pieces in which the rest is sent. The socket then ends its direction.
//
// A transport that demands a proof must not report a connection. It may answer with records, or with TLS, and
// must close the socket. It must go on serving, which the next input shows.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace {

using gradwire::Descriptor;
using gradwire::fuzzing::Input;
using gradwire::fuzzing::require;
using gradwire::security::CredentialsPtr;
using gradwire::security::Record;
using gradwire::security::RecordParser;
using gradwire::security::Secret;
using gradwire::security::TestAuthority;
using gradwire::transport::Preface;
using gradwire::transport::RecordingListener;

CredentialsPtr credentials_of(Preface::Proof proof) {
  switch (proof) {
    case Preface::Proof::kToken:
      return *gradwire::security::make_token_credentials(Secret("the token of the fuzzer, 32 bytes."), true);
    case Preface::Proof::kCertificate: {
      static const auto* const authority = new TestAuthority;
      return *gradwire::security::make_certificate_credentials(authority->worker("job", "server"));
    }
    case Preface::Proof::kNone:
      break;
  }
  return gradwire::security::insecure_credentials();
}

// A listening transport that lives until the end of the process.
class Port {
 public:
  explicit Port(Preface::Proof proof) {
    gradwire::transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.purpose = "rpc";
    options.credentials = credentials_of(proof);
    options.limits.max_message_bytes = 1 << 20;
    options.limits.max_buffer_bytes = 1 << 20;
    transport_ = gradwire::transport::make_tcp_transport(options);
    auto address = transport_->listen([this](const std::shared_ptr<gradwire::transport::Connection>&) {
      ++accepted;
      return std::make_shared<RecordingListener>();
    });
    require(address.ok(), "the transport does not listen");
    int number = 0;
    require(absl::SimpleAtoi(address->substr(address->rfind(':') + 1), &number), "an address without a port");
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<uint16_t>(number));
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  ~Port() { transport_->shutdown(); }

  Descriptor connect() const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0,
            "the port does not answer");
    const int one = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    const timeval timeout = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    return socket;
  }

  std::atomic<int> accepted{0};

 private:
  std::unique_ptr<gradwire::transport::Transport> transport_;
  sockaddr_in address_ = {};
};

Port& port(Preface::Proof proof) {
  static Port token(Preface::Proof::kToken);
  static Port certificate(Preface::Proof::kCertificate);
  static Port none(Preface::Proof::kNone);
  if (proof == Preface::Proof::kToken) return token;
  return proof == Preface::Proof::kCertificate ? certificate : none;
}

// The answer to a peer that has proved nothing: a challenge or a refusal, each at most once, in this order.
void check_records(absl::string_view bytes) {
  Record::Kind before = Record::Kind::kHello;
  RecordParser parser;
  while (!bytes.empty()) {
    const auto taken = parser.add(bytes);
    require(taken.ok(), "the answer is not a record");
    bytes.remove_prefix(*taken);
    if (!parser.complete()) continue;
    const Record record = parser.take();
    require(record.kind == Record::Kind::kChallenge || record.kind == Record::Kind::kRefusal,
            "an answer of another kind");
    require(record.kind > before, "an answer twice");
    before = record.kind;
    if (record.kind != Record::Kind::kRefusal) continue;
    for (const char c : record.body) require(c >= ' ' && c <= '~', "a refusal that is not text");
  }
}

// Whether these bytes open a connection or a stripe at a port that demands no proof.
bool is_open_preface(const std::string& bytes) {
  return bytes.size() >= Preface::kBytes && Preface::parse(bytes.substr(0, Preface::kBytes)).ok();
}

void knock(Preface::Proof proof, std::size_t piece, const std::string& bytes) {
  Port& server = port(proof);
  const int before = server.accepted;
  const Descriptor socket = server.connect();
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::size_t size = std::min(piece, bytes.size() - at);
    if (::send(socket.get(), bytes.data() + at, size, MSG_NOSIGNAL) <= 0) break;
  }
  ::shutdown(socket.get(), SHUT_WR);
  std::string answer;
  char part[4096];
  ssize_t got = 0;
  while ((got = ::recv(socket.get(), part, sizeof(part), 0)) > 0)
    answer.append(part, static_cast<std::size_t>(got));
  require(got == 0 || errno == ECONNRESET, "the socket stays open");
  require(answer.size() < 8192, "an endless answer");
  if (proof == Preface::Proof::kNone) {
    require(server.accepted == before || is_open_preface(bytes), "a connection without a preface");
    return;
  }
  require(server.accepted == before, "a connection without a proof");
  // The records of TLS begin with the type of a handshake or an alert.
  if (proof == Preface::Proof::kCertificate && !answer.empty() && (answer[0] == 0x15 || answer[0] == 0x16))
    return;
  // A reset may have destroyed the end of the answer.
  if (got == 0) check_records(answer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Input input(data, size);
  const Preface::Proof proofs[] = {Preface::Proof::kToken, Preface::Proof::kCertificate,
                                   Preface::Proof::kNone};
  const Preface::Proof proof = proofs[input.number(1) % 3];
  // At most 40 pieces, so that a run does not consist of system calls.
  const uint64_t piece = 1 + input.number(1);
  const std::string bytes = input.rest();
  knock(proof, std::max<std::size_t>(piece, bytes.size() / 40), bytes);
  return 0;
}
