#include "gradwire/gateway/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/gateway/access/access.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/gateway/serving/service.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/security/checked_file.h"

namespace gradwire::gateway {
namespace {

constexpr char kServiceName[] = "gradwire.gateway.v1.Gateway";

std::string read_file(absl::string_view what, absl::string_view option, security::FileKind::Rule rule,
                      const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const security::FileKind kind = {.what = what, .option = option, .rule = rule, .most = kMost};
  return std::string(value_or_throw(security::read_checked_file(kind, path)).content.reveal());
}

std::shared_ptr<grpc::ServerCredentials> credentials(const Options& options) {
  using Rule = security::FileKind::Rule;
  if (options.certificate_file.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions tls(options.client_authority_file.empty()
                                            ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_key_cert_pairs.push_back(
      {read_file("key", "Options::key_file", Rule::kSecret, options.key_file),
       read_file("certificate", "Options::certificate_file", Rule::kTrusted, options.certificate_file)});
  if (!options.client_authority_file.empty()) {
    tls.pem_root_certs = read_file("authority", "Options::client_authority_file", Rule::kTrusted,
                                   options.client_authority_file);
  }
  return grpc::SslServerCredentials(tls);
}

// Searches for idle sessions and stalled streams, again and again while the core exists. A search schedules
// the next one, so that no two of them wait for a thread. One that throws is logged, and the next one comes.
void watch(const std::weak_ptr<Core>& weak, absl::Duration period) {
  const std::shared_ptr<Core> core = weak.lock();
  if (core == nullptr) return;
  core->agent->services().timers().schedule(Clock::system().now() + period, [weak, period] {
    const std::shared_ptr<Core> alive = weak.lock();
    if (alive == nullptr) return;
    // gRPC's callbacks do not run on the timers' thread.
    alive->agent->executor()->post([weak, period] {
      const std::shared_ptr<Core> still = weak.lock();
      if (still == nullptr) return;
      run_contained("the search for idle sessions", [&] { still->sessions.expire(); });
      run_contained("the search for stalled streams", [&] { still->stalls.check(); });
      watch(weak, period);
    });
  });
}

// While it exists, new files of this process are for its user alone. gRPC makes the socket file of a "unix:"
// address and listens there in one step, with the mode that the umask leaves. Other threads may make files
// meanwhile, which are then more private than they asked for.
class PrivateFiles {
 public:
  explicit PrivateFiles(bool wanted) : wanted_(wanted), before_(wanted ? ::umask(0077) : 0) {}
  ~PrivateFiles() {
    if (wanted_) ::umask(before_);
  }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const bool wanted_;
  const mode_t before_;
};

}  // namespace

struct Server::Impl {
  Impl(std::shared_ptr<rpc::Agent> worker, Options options)
      // The pointer that Agent::start() returned shuts the agent down when it is destroyed. The core lives on
      // in calls, on threads of the agent itself, so it has a pointer without that duty.
      : agent(std::move(worker)),
        core(std::make_shared<Core>(agent->shared_from_this(), std::move(options))),
        service(core) {}

  // Protobuf writes a line for each message with a `string` that is not UTF-8, before the client has shown
  // its token: in requests, and in those of server reflection, which other code parses. Such a message fails,
  // so the line says nothing new.
  const google::protobuf::LogSilencer no_lines_for_malformed_messages;
  const std::shared_ptr<rpc::Agent> agent;
  const std::shared_ptr<Core> core;
  Service service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::once_flag stopped;
};

Server::Server(std::shared_ptr<rpc::Agent> agent, Options options)
    : impl_(std::make_unique<Impl>(std::move(agent), std::move(options))) {
  const Options& checked = impl_->core->options;
  throw_if_error(check_options(checked));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  // Otherwise a second gateway at the same address would get a part of its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds clients whose host is gone: their sessions end.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddListeningPort(checked.address, credentials(checked), &impl_->port);
  builder.RegisterService(&impl_->service);
  {
    const PrivateFiles only_for_unix_sockets(absl::StartsWith(checked.address, "unix:"));
    impl_->server = builder.BuildAndStart();
  }
  if (impl_->server == nullptr || impl_->port == 0) {
    throw Error(absl::UnavailableError(absl::StrCat("cannot listen on ", checked.address,
                                                    ": is the address in use, or not one of this host?")));
  }
  impl_->server->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  const absl::Duration shortest = std::min(checked.session_idle, checked.stall_timeout);
  watch(impl_->core, std::clamp(shortest / 4, absl::Milliseconds(10), absl::Seconds(1)));
}

Server::~Server() { shutdown(); }

int Server::port() const { return impl_->port; }
std::size_t Server::objects() const { return impl_->core->sessions.objects(); }
std::size_t Server::calls() const { return impl_->core->limits.calls(); }

void Server::shutdown() {
  std::call_once(impl_->stopped, [this] {
    if (impl_->server == nullptr) return;
    impl_->server->GetHealthCheckService()->SetServingStatus(false);
    impl_->core->sessions.end_all(absl::UnavailableError("the gateway shuts down"));
    impl_->server->Shutdown(std::chrono::system_clock::now() +
                            absl::ToChronoMilliseconds(impl_->core->options.drain));
    impl_->server->Wait();
    // A session that was opened meanwhile.
    impl_->core->sessions.end_all(absl::UnavailableError("the gateway shuts down"));
  });
}

}  // namespace gradwire::gateway
