#include "gradwire/store/tcp_store_server.h"

#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/store/c10d/c10d_admission.h"
#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_sessions.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::store {

struct TcpStoreServer::Impl {
  ProcessMark mark;
  std::shared_ptr<StoreLoop> loop;
  std::shared_ptr<TcpStoreSessions> sessions;
  std::unique_ptr<transport::Transport> transport;
  int port = 0;

  Mutex mutex;  // Makes concurrent shutdown() calls wait for the first.
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

TcpStoreServer::TcpStoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(const TcpStoreServerOptions& options) {
  // "localhost" resolves to ::1 on some machines; clients and server agree on 127.0.0.1.
  const std::string loopback = absl::EqualsIgnoreCase(options.host, "localhost") ? "127.0.0.1" : options.host;
  security::CredentialsPtr credentials = options.credentials;
  if (credentials == nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(credentials, security::make_credentials(options.security));
  }
  const bool open = credentials->may_leave_host();
  if (!open && !options.host.empty() && !is_loopback(options.host)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot serve a store for other hosts at ", to_string({options.host, options.port}),
                     " without a token or a certificate: ", security::kHowToSecure));
  }
  const std::string host = is_loopback(options.host) ? loopback : open ? "" : "127.0.0.1";
  const std::string address = to_string({host.empty() ? "::" : host, options.port});
  GRADWIRE_RETURN_IF_ERROR(check_endpoint({host.empty() ? "::" : host, options.port}, 0));

  auto impl = std::make_unique<Impl>();
  GRADWIRE_ASSIGN_OR_RETURN(impl->loop, StoreLoop::create("store-server"));
  using Mode = C10dAdmission::Mode;
  const bool serves_all_of_pytorch = options.allow_unauthenticated_pytorch.value_or(
      credentials->kind() == security::Credentials::Kind::kInsecure);
  C10dAdmission admission({.mode = serves_all_of_pytorch ? Mode::kEveryone : Mode::kAllowedUsers,
                           .allowed_users = options.security.allowed_users});
  impl->sessions = std::make_shared<TcpStoreSessions>(impl->loop->loop(), random_id(),
                                                      options.max_unread_bytes, std::move(admission));
  transport::TcpOptions tcp;
  tcp.limits = store_message_limits();
  tcp.credentials = credentials;
  tcp.purpose = kStorePurpose;
  tcp.allowed_users = options.security.allowed_users;
  tcp.bind_address = host;
  tcp.port = options.port;
  // The advertised host is not used: clients get the address by other means. This value avoids resolving this
  // machine's name.
  tcp.advertised_host = "localhost";
  // The clients of PyTorch's TCPStore come to the same port.
  tcp.other_protocol = std::make_shared<const transport::OtherProtocol>(transport::OtherProtocol{
      .first_bytes = std::string(kC10dGreeting),
      .take_in_loop = [sessions = impl->sessions](Descriptor socket, const std::string& peer) {
        sessions->accept_c10d_in_loop(std::move(socket), peer);
      }});
  impl->transport = transport::make_tcp_transport(tcp, impl->loop->loop());
  const absl::StatusOr<std::string> listening = impl->transport->listen(
      [sessions = impl->sessions](const std::shared_ptr<transport::Connection>& connection) {
        return sessions->accept_in_loop(connection);
      });
  if (!listening.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on port ", options.port, " (", address, "): ", listening.status().message(),
        ": the port is in use by another process, or not permitted; choose another port, or 0"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(*listening));
  impl->port = endpoint.port;
  log(LogLevel::kInfo, "serving a TcpStore on port ", endpoint.port);
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(impl)));
}

TcpStoreServer::~TcpStoreServer() {
  if (impl_->mark.here()) {
    shutdown();
  } else {
    leak_after_fork(impl_);
  }
}

int TcpStoreServer::port() const { return impl_->port; }

std::size_t TcpStoreServer::num_waiters() const { return impl_->sessions->num_waiters(); }

const std::shared_ptr<StoreLoop>& TcpStoreServer::loop() const { return impl_->loop; }

// First answers all waiting calls and announces the stop, so that clients do not try to reconnect. Then the
// connections send what is left, for `grace` at most. The transport waits only for its own connections, not
// for those of PyTorch's clients. The lock is held meanwhile, so that a concurrent caller also returns only
// after the end.
void TcpStoreServer::shutdown(absl::Duration grace) {
  if (!impl_->mark.here()) return;
  MutexLock lock(impl_->mutex);
  if (impl_->stopped) return;
  impl_->stopped = true;
  log(LogLevel::kInfo, "stopped serving the TcpStore on port ", impl_->port);
  const auto closed = std::make_shared<std::atomic<bool>>(false);
  impl_->loop->loop()->post([sessions = impl_->sessions, grace, closed] {
    sessions->stop_in_loop(grace, [closed] { *closed = true; });
  });
  impl_->transport->shutdown();
  impl_->loop->loop()->run_until([&closed] { return closed->load(); });
}

}  // namespace gradwire::store
