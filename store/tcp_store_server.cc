#include "store/tcp_store_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/mutex.h"
#include "store/endpoint.h"
#include "store/limits.h"
#include "store/tcp_store_service.h"

namespace gradwire::store {

struct TcpStoreServer::Parts {
  TcpStoreService service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  Mutex mutex;  // Makes concurrent shutdowns wait for the first.
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

TcpStoreServer::TcpStoreServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(const TcpStoreServerOptions& options) {
  // "localhost" may stand for ::1 too, but not everywhere; clients and server agree on 127.0.0.1.
  const std::string loopback = absl::EqualsIgnoreCase(options.host, "localhost") ? "127.0.0.1" : options.host;
  const std::string host = is_loopback(options.host) ? loopback : "::";
  const std::string address = to_string({host, options.port});
  GRADWIRE_RETURN_IF_ERROR(check_endpoint({host, options.port}, 0));

  auto parts = std::make_unique<Parts>();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &parts->port);
  builder.RegisterService(&parts->service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Two stores that share a port would each get some of the clients.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A client whose host has vanished without a word is noticed, and its waiting calls with it.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || parts->port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on port ", options.port, " (", address,
                     "): it is taken by another process, or may not be used here; choose another, or 0"));
  }
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(parts)));
}

TcpStoreServer::~TcpStoreServer() { shutdown(); }

int TcpStoreServer::port() const { return parts_->port; }

std::size_t TcpStoreServer::num_waiters() const { return parts_->service.num_waiters(); }

void TcpStoreServer::shutdown(absl::Duration grace) {
  MutexLock lock(parts_->mutex);
  if (parts_->stopped) return;
  parts_->stopped = true;
  parts_->service.stop();
  parts_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
}

}  // namespace gradwire::store
