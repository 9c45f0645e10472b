#include "gradwire/transport/tcp/tcp_context.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gradwire/transport/tcp/arrival.h"

namespace gradwire::transport {

TcpOptions TcpContext::allowed(TcpOptions options) {
  if (options.credentials == nullptr) options.credentials = security::no_credentials();
  // The bytes of a stripe are not encrypted.
  if (proof_of(options.credentials->kind()) == Preface::Proof::kCertificate) options.stripes = 0;
  return options;
}

namespace {

// A connection with certificates has no stripes, so only a token needs a handshake. Its purpose is another
// one than that of connections: no handshake of a connection can be led to a stripe.
security::ConnectionFacts stripe_facts(const TcpOptions& options, const std::string& peer_address) {
  return {.purpose = absl::StrCat(options.purpose, "/stripe"),
          .own_name = options.own_name,
          .peer_address = peer_address};
}

bool stripes_need_a_proof(const TcpOptions& options) {
  return proof_of(options.credentials->kind()) == Preface::Proof::kToken;
}

}  // namespace

std::unique_ptr<security::SocketHandshake> TcpContext::stripe_handshake_of_acceptor(
    int socket, const std::string& peer_address) const {
  if (!stripes_need_a_proof(options)) return nullptr;
  return options.credentials->connected(socket, stripe_facts(options, peer_address));
}

std::unique_ptr<security::SocketHandshake> stripe_handshake_of_opener(const TcpOptions& options, int socket,
                                                                      const std::string& peer_address) {
  if (!stripes_need_a_proof(options)) return nullptr;
  return options.credentials->accepted(socket, stripe_facts(options, peer_address));
}

absl::Status TcpContext::check_client_in_loop(int socket) {
  if (options.credentials->may_leave_host()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_peer_user(socket));
  return users.check(user, "a connection over the loopback interface");
}

// Another user's process may listen at the port where this process expects its own job.
absl::Status TcpContext::check_server_in_loop(int socket) {
  if (options.credentials->may_leave_host()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_server_user(socket));
  return users.check(user, "the server of a connection over the loopback interface");
}

// cancel_in_loop() removes the arrival from the table, so iterating over it is not possible.
void TcpContext::shut_down_in_loop() {
  while (!arrivals.empty()) {
    const std::shared_ptr<Arrival> arrival = arrivals.begin()->second;
    arrival->cancel_in_loop();
  }
  LoopContext::shut_down_in_loop();
}

}  // namespace gradwire::transport
