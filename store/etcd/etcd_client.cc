#include "gradwire/store/etcd/etcd_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/calls/pause.h"
#include "gradwire/store/etcd/etcd_status.h"
#include "gradwire/store/interface/limits.h"

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

namespace {

// Minimum time given to a call that need not wait, even if its deadline is sooner or has passed.
constexpr absl::Duration kMinCallTime = absl::Seconds(1);
constexpr absl::Duration kMinPause = absl::Milliseconds(20);
constexpr absl::Duration kMaxPause = absl::Milliseconds(500);
// Limit for new tokens in one call. A restart of etcd can make a new token invalid, but not many times in a
// row.
constexpr int kMaxRenewals = 5;
// A signed token (--auth-token=jwt) has some hundred bytes.
constexpr std::size_t kMaxTokenBytes = 8192;

gpr_timespec to_timespec(absl::Duration left) {
  // One year: longer than any job, and far below the limit of gpr_timespec.
  left = std::min(left, absl::Hours(24 * 365));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(left), GPR_TIMESPAN));
}

std::string addresses(const std::vector<EtcdMember>& members) {
  return absl::StrJoin(members, ", ", [](std::string* out, const EtcdMember& member) {
    absl::StrAppend(out, member.address);
  });
}

}  // namespace

absl::Status EtcdClient::call(absl::Time deadline, const Attempt& attempt, bool* unsure) {
  return call_until(with_least_time(deadline), attempt, unsure);
}

absl::Time EtcdClient::with_least_time(absl::Time deadline) const {
  return std::max(deadline, clock_.now() + kMinCallTime);
}

// After a failed attempt (EtcdFailure):
// - kFinal: the same would happen again; return it.
// - kToken: get a new token and repeat at once, a limited number of times.
// - kRefused: etcd has not executed the call. Try the next member.
// - kMember, kDeadline: etcd may have executed the call (`unsure`). Try the next member.
//
// A pause follows only after all members have failed.
absl::Status EtcdClient::call_until(absl::Time deadline, const Attempt& attempt, bool* unsure) {
  const absl::Time start = clock_.now();
  std::string last;
  int failures = 0, renewals = 0;
  while (true) {
    const absl::Time attempted = clock_.now();
    std::string address;
    const grpc::Status status = call_once(deadline, attempt, &address);
    if (status.ok()) return absl::OkStatus();
    // An attempt that lasted for a while does not count as a repeated failure.
    if (clock_.now() - attempted > absl::Seconds(1)) failures = renewals = 0;
    const EtcdFailure failure = classify_etcd(status);
    const absl::Status explained = explain_etcd(status, address, options_.user, options_.prefix);
    if (failure == EtcdFailure::kFinal) return explained;
    if (failure == EtcdFailure::kToken) {
      if (options_.user.empty() || ++renewals > kMaxRenewals) return explained;
      continue;
    }
    if (unsure != nullptr && failure != EtcdFailure::kRefused) *unsure = true;
    if (failure == EtcdFailure::kDeadline && last.empty()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the ", options_.name, " got no answer from ", address, " within ",
                       absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1)))));
    }
    // Keep the last reason that says more than "deadline exceeded".
    if (failure != EtcdFailure::kDeadline) last = std::string(explained.message());
    const int members = static_cast<int>(options_.members.size());
    if (++failures % members == 0) pause(failures / members, deadline);
    if (clock_.now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          "the ", options_.name, " could not reach etcd at ", addresses(options_.members), " within ",
          absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1))), "; last: ", last));
    }
  }
}

grpc::Status EtcdClient::call_once(absl::Time deadline, const Attempt& attempt, std::string* address) {
  std::size_t index = current_.load();
  // All threads use the same member, until one of them finds that it fails.
  const EtcdMember& member = options_.members[index];
  if (address != nullptr) *address = member.address;
  std::string token;
  grpc::Status status = get_token(member, deadline, token);
  if (status.ok()) {
    grpc::ClientContext context;
    prepare(context, deadline);
    if (!token.empty()) context.AddMetadata("token", token);
    status = attempt(member, context);
  }
  if (status.ok()) return status;
  // gRPC lets a call wait while it connects. So the code may also mean a member that cannot be reached.
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      member.channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
    status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection could be made in time");
  }
  const EtcdFailure failure = classify_etcd(status);
  if (failure == EtcdFailure::kToken) {
    MutexLock lock(mutex_);
    // Not if another thread has got a new token meanwhile.
    if (token_ == token) authenticated_ = false;
  }
  if (failure == EtcdFailure::kMember || failure == EtcdFailure::kRefused ||
      failure == EtcdFailure::kDeadline) {
    // Not if another thread has moved on to the next member meanwhile.
    current_.compare_exchange_strong(index, (index + 1) % options_.members.size());
  }
  return status;
}

grpc::Status EtcdClient::get_token(const EtcdMember& member, absl::Time deadline, std::string& token) {
  if (options_.user.empty()) return grpc::Status::OK;
  {
    MutexLock lock(mutex_);
    if (authenticated_) {
      token = token_;
      return grpc::Status::OK;
    }
  }
  grpc::ClientContext context;
  prepare(context, deadline);
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.user);
  // Threads may authenticate at the same time; each token is valid.
  request.set_password(options_.password);
  etcdserverpb::AuthenticateResponse response;
  const grpc::Status status = member.auth->Authenticate(&context, request, &response);
  if (!status.ok() && !absl::StrContains(status.error_message(), "authentication is not enabled"))
    return status;
  if (!status.ok()) {
    log(LogLevel::kWarning, options_.name, ": etcd at ", member.address,
        " has authentication disabled; the given user and password are not used");
  }
  // Check the token: gRPC aborts the program if metadata has invalid characters.
  const std::string& received_token = response.token();
  if (received_token.size() > kMaxTokenBytes ||
      !std::all_of(received_token.begin(), received_token.end(), absl::ascii_isgraph)) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "malformed authentication token");
  }
  MutexLock lock(mutex_);
  authenticated_ = true;
  token_ = response.token();
  token = token_;
  return grpc::Status::OK;
}

void EtcdClient::prepare(grpc::ClientContext& context, absl::Time deadline) const {
  context.set_deadline(to_timespec(deadline - clock_.now()));
  // Ask a member that has lost its cluster to fail, instead of watching without effect.
  context.AddMetadata("hasleader", "true");
}

void EtcdClient::pause(int round, absl::Time deadline) {
  const absl::Duration pause = std::min(kMaxPause, kMinPause * (1 << std::min(round - 1, 10)));
  pause_until(clock_, std::min(deadline, clock_.now() + pause));
}

absl::Status EtcdClient::not_etcd_error(absl::string_view why) const {
  return not_etcd(options_.members[current_.load()].address, why);
}

}  // namespace gradwire::store
