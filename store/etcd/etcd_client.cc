#include "gradwire/store/etcd/etcd_client.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/log.h"
#include "gradwire/store/calls/pause.h"
#include "gradwire/store/etcd/etcd_status.h"

namespace gradwire::store {
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
