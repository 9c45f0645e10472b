#include "gradwire/store/tcp_store_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_protocol.h"
#include "gradwire/store/tcp/tcp_store_sessions.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::store {

struct TcpStoreServer::Parts {
  std::shared_ptr<StoreLoop> loop;
  std::shared_ptr<TcpStoreSessions> sessions;
  std::unique_ptr<transport::Transport> transport;
  int port = 0;

  Mutex mutex;  // Makes concurrent shutdowns wait for the first.
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

TcpStoreServer::TcpStoreServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(const TcpStoreServerOptions& options) {
  // "localhost" may stand for ::1 too, but not everywhere; clients and server agree on 127.0.0.1.
  const std::string loopback = absl::EqualsIgnoreCase(options.host, "localhost") ? "127.0.0.1" : options.host;
  const std::string host = is_loopback(options.host) ? loopback : "";
  const std::string address = to_string({host.empty() ? "::" : host, options.port});
  GRADWIRE_RETURN_IF_ERROR(check_endpoint({host.empty() ? "::" : host, options.port}, 0));

  auto parts = std::make_unique<Parts>();
  GRADWIRE_ASSIGN_OR_RETURN(parts->loop, StoreLoop::create("store-server"));
  parts->sessions =
      std::make_shared<TcpStoreSessions>(parts->loop->loop(), random_id(), options.max_unread_bytes);
  transport::TcpOptions tcp;
  tcp.limits = store_message_limits();
  tcp.bind_address = host;
  tcp.port = options.port;
  // Whoever needs the store is told where it is by other means; this saves a look-up of this machine's name.
  tcp.advertised_host = "localhost";
  parts->transport = transport::make_tcp_transport(tcp, parts->loop->loop());
  const absl::StatusOr<std::string> listening = parts->transport->listen(
      [sessions = parts->sessions](const std::shared_ptr<transport::Connection>& connection) {
        return sessions->accept_in_loop(connection);
      });
  if (!listening.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on port ", options.port, " (", address, "): ", listening.status().message(),
        ": it is taken by another process, or may not be used here; choose another, or 0"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(*listening));
  parts->port = endpoint.port;
  log(LogLevel::kInfo, "serves a TcpStore at port ", endpoint.port);
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(parts)));
}

TcpStoreServer::~TcpStoreServer() { shutdown(); }

int TcpStoreServer::port() const { return parts_->port; }

std::size_t TcpStoreServer::num_waiters() const { return parts_->sessions->num_waiters(); }

const std::shared_ptr<StoreLoop>& TcpStoreServer::loop() const { return parts_->loop; }

void TcpStoreServer::shutdown(absl::Duration grace) {
  MutexLock lock(parts_->mutex);
  if (parts_->stopped) return;
  parts_->stopped = true;
  log(LogLevel::kInfo, "serves the TcpStore at port ", parts_->port, " no longer");
  parts_->loop->loop()->post([sessions = parts_->sessions, grace] { sessions->stop_in_loop(grace); });
  parts_->transport->shutdown();
}

}  // namespace gradwire::store
