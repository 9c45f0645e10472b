#include "gradwire/store/etcd/etcd_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/store/memory/limits.h"
#include "gradwire/store/tcp/endpoint.h"

namespace gradwire::store {
namespace {

// If a member does not accept a connection within this time, the next member is tried.
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
constexpr absl::Duration kMinReconnect = absl::Milliseconds(100);
constexpr absl::Duration kMaxReconnect = absl::Seconds(1);
// Keepalive pings, while a call is under way: time without data before a ping, and time to answer it. etcd
// disconnects clients that ping more often than every 5 s, or while no call is under way.
constexpr absl::Duration kKeepaliveAfter = absl::Seconds(10);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(5);

int milliseconds(absl::Duration duration) { return static_cast<int>(absl::ToInt64Milliseconds(duration)); }

absl::StatusOr<std::string> read_pem(const std::string& path, absl::string_view what) {
  if (path.empty()) return std::string();
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read etcd's ", what, " from ", path, ": ",
                                                   errno != 0 ? std::strerror(errno) : "the file is empty"));
  }
  return text;
}

absl::StatusOr<grpc::SslCredentialsOptions> read_files(const EtcdSecurity& security) {
  if (security.certificate_file.empty() != security.key_file.empty()) {
    return absl::InvalidArgumentError(
        "a client of etcd needs both certificate_file and key_file, or neither: one of them is empty");
  }
  grpc::SslCredentialsOptions options;
  GRADWIRE_ASSIGN_OR_RETURN(options.pem_root_certs, read_pem(security.authority_file, "authority_file"));
  GRADWIRE_ASSIGN_OR_RETURN(options.pem_cert_chain, read_pem(security.certificate_file, "certificate_file"));
  GRADWIRE_ASSIGN_OR_RETURN(options.pem_private_key, read_pem(security.key_file, "key_file"));
  return options;
}

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMaxMessageBytes));
  // Use a connection of this store alone, which ends with the store.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The store itself decides which calls are repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // etcd is in the job's own network. Ignore a proxy that the environment names for outside connections.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, milliseconds(kConnectTimeout));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, milliseconds(kMinReconnect));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, milliseconds(kMaxReconnect));
  // gRPC reconnects only after it has resolved the name again, which it does at most every 30 s by default.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, milliseconds(kMinReconnect));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(kKeepaliveAfter));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds(kKeepaliveTimeout));
  // Watches may be silent for a long time; keep sending pings.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

absl::StatusOr<std::vector<EtcdMember>> open_etcd_members(const std::vector<std::string>& endpoints,
                                                          const EtcdSecurity& security) {
  if (endpoints.empty())
    return absl::InvalidArgumentError("an EtcdStore needs at least one endpoint of etcd");
  if (security.user.empty() && !security.password.empty()) {
    return absl::InvalidArgumentError("security.password for etcd is set, but security.user is empty");
  }
  GRADWIRE_ASSIGN_OR_RETURN(const grpc::SslCredentialsOptions files, read_files(security));
  const bool tls = security.tls || !security.authority_file.empty() || !security.certificate_file.empty();
  std::vector<EtcdMember> members;
  for (const std::string& endpoint : endpoints) {
    absl::string_view rest = endpoint;
    const bool https = absl::ConsumePrefix(&rest, "https://");
    if (!https && absl::ConsumePrefix(&rest, "http://") && tls) {
      return absl::InvalidArgumentError(
          absl::StrCat("etcd's endpoint ", endpoint,
                       " is without TLS, but the security options require it: use https://"));
    }
    absl::ConsumeSuffix(&rest, "/");
    const absl::StatusOr<Endpoint> parsed = parse_endpoint(rest);
    if (!parsed.ok()) return with_context(parsed.status(), "invalid endpoint of etcd");
    GRADWIRE_RETURN_IF_ERROR(check_endpoint(*parsed, 1));
    EtcdMember member;
    member.address = to_string(*parsed);
    member.channel = grpc::CreateCustomChannel(
        absl::StrCat("dns:///", member.address),
        tls || https ? grpc::SslCredentials(files) : grpc::InsecureChannelCredentials(), channel_arguments());
    member.kv = etcdserverpb::KV::NewStub(member.channel);
    member.watch = etcdserverpb::Watch::NewStub(member.channel);
    member.lease = etcdserverpb::Lease::NewStub(member.channel);
    member.auth = etcdserverpb::Auth::NewStub(member.channel);
    members.push_back(std::move(member));
  }
  return members;
}

}  // namespace gradwire::store
