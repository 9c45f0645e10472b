#include "gradwire/store/etcd/etcd_client.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/log.h"
#include "gradwire/store/etcd/etcd_status.h"

namespace gradwire::store {
namespace {

// How soon a call that need not wait may end when its own deadline has passed or is short.
constexpr absl::Duration kLeastCallTime = absl::Seconds(1);
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
// A token that has just been given and is refused may have fallen to a restart in between, but not often.
constexpr int kMostRenewals = 5;
// A signed one (--auth-token=jwt) has some hundreds.
constexpr std::size_t kMaxTokenBytes = 8192;

gpr_timespec to_timespec(absl::Duration left) {
  // Beyond what any job lives, and far below where its numbers end.
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
  return std::max(deadline, clock_.now() + kLeastCallTime);
}

absl::Status EtcdClient::call_until(absl::Time deadline, const Attempt& attempt, bool* unsure) {
  const absl::Time start = clock_.now();
  std::string last;
  int failures = 0, renewals = 0;
  while (true) {
    const absl::Time attempted = clock_.now();
    std::string address;
    const grpc::Status status = call_once(deadline, attempt, &address);
    if (status.ok()) return absl::OkStatus();
    // What went on for a while is no failure after failures.
    if (clock_.now() - attempted > absl::Seconds(1)) failures = renewals = 0;
    const EtcdFailure failure = classify_etcd(status);
    const absl::Status explained = explain_etcd(status, address, options_.user, options_.prefix);
    if (failure == EtcdFailure::kFinal) return explained;
    if (failure == EtcdFailure::kToken) {
      if (options_.user.empty() || ++renewals > kMostRenewals) return explained;
      continue;
    }
    if (unsure != nullptr && failure != EtcdFailure::kRefused) *unsure = true;
    if (failure == EtcdFailure::kDeadline && last.empty()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the ", options_.name, " got no answer from ", address, " within ",
                       absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1)))));
    }
    // What says more than that the time was over.
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
  const EtcdFailure failure = classify_etcd(status);
  if (failure == EtcdFailure::kToken) {
    MutexLock lock(mutex_);
    // Unless another thread has got a new one meanwhile.
    if (token_ == token) authenticated_ = false;
  }
  if (failure == EtcdFailure::kMember || failure == EtcdFailure::kRefused ||
      failure == EtcdFailure::kDeadline) {
    // Unless another thread has gone on meanwhile.
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
  request.set_password(options_.password);
  etcdserverpb::AuthenticateResponse response;
  const grpc::Status status = member.auth->Authenticate(&context, request, &response);
  if (!status.ok() && !absl::StrContains(status.error_message(), "authentication is not enabled"))
    return status;
  if (!status.ok()) {
    log(LogLevel::kWarning, options_.name, ": etcd at ", member.address,
        " has authentication disabled and does not ask for the user and password that were given");
  }
  // gRPC ends the program over metadata that cannot be sent.
  const std::string& given = response.token();
  if (given.size() > kMaxTokenBytes || !std::all_of(given.begin(), given.end(), absl::ascii_isgraph)) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "it gave a token that cannot be one");
  }
  MutexLock lock(mutex_);
  authenticated_ = true;
  token_ = response.token();
  token = token_;
  return grpc::Status::OK;
}

void EtcdClient::prepare(grpc::ClientContext& context, absl::Time deadline) const {
  context.set_deadline(to_timespec(deadline - clock_.now()));
  // A member that has lost its cluster is to say so instead of watching in vain.
  context.AddMetadata("hasleader", "true");
}

void EtcdClient::pause(int round, absl::Time deadline) {
  const absl::Duration pause = std::min(kLongestPause, kFirstPause * (1 << std::min(round - 1, 10)));
  const absl::Time until = std::min(deadline, clock_.now() + pause);
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  while (clock_.now() < until) clock_.wait_until(mutex, never, until);
}

absl::Status EtcdClient::no_etcd_here(absl::string_view why) const {
  return no_etcd(options_.members[current_.load()].address, why);
}

}  // namespace gradwire::store
