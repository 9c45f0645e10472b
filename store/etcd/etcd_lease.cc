#include "gradwire/store/etcd/etcd_lease.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"

namespace gradwire::store {
namespace {

// How long closing may take when etcd does not answer; the lease then runs out by itself.
constexpr absl::Duration kRevokeFor = absl::Seconds(2);
// After a keep-alive that failed.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

}  // namespace

EtcdLease::EtcdLease(EtcdClient& client, absl::Duration ttl, std::string name, Clock& clock)
    : client_(client), ttl_(ttl), name_(std::move(name)), clock_(clock), thread_([this] { run(); }) {}

EtcdLease::~EtcdLease() {
  int64_t id;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    id = id_;
    if (context_ != nullptr) context_->TryCancel();
    wake_.notify_all();
  }
  thread_.join();
  if (id == 0) return;
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id);
  client_.call_once(clock_.now() + kRevokeFor, [&](const EtcdMember& member, grpc::ClientContext& context) {
    etcdserverpb::LeaseRevokeResponse response;
    return member.lease->LeaseRevoke(&context, request, &response);
  });
}

absl::StatusOr<int64_t> EtcdLease::id(absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    const absl::Time start = clock_.now();
    const absl::Time until = client_.with_least_time(deadline);
    while (id_ == 0 && granting_) {
      const absl::Time now = clock_.now();
      if (now >= until) {
        return absl::DeadlineExceededError(
            absl::StrCat("the ", name_, " got no lease for its keys within ",
                         absl::FormatDuration(absl::Trunc(now - start, absl::Milliseconds(1))),
                         ": another call is asking etcd for one"));
      }
      clock_.wait_until(mutex_, wake_, until);
    }
    if (id_ != 0) return id_;
    granting_ = true;
  }
  const absl::StatusOr<int64_t> granted = grant(deadline);
  MutexLock lock(mutex_);
  granting_ = false;
  if (granted.ok()) id_ = *granted;
  wake_.notify_all();
  return granted;
}

absl::StatusOr<int64_t> EtcdLease::grant(absl::Time deadline) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl_));
  etcdserverpb::LeaseGrantResponse response;
  // A lease whose grant is not heard of has no keys and runs out.
  GRADWIRE_RETURN_IF_ERROR(
      client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
        response.Clear();
        return member.lease->LeaseGrant(&context, request, &response);
      }));
  if (response.id() == 0) return client_.no_etcd_here("it granted a lease without a number");
  return response.id();
}

void EtcdLease::lost(int64_t id) {
  {
    MutexLock lock(mutex_);
    if (id_ != id) return;
    id_ = 0;
  }
  log(LogLevel::kWarning, name_, ": the lease of its keys ran out, because etcd was not reached within ",
      absl::FormatDuration(ttl_), ", and the keys that hung on it are gone");
}

void EtcdLease::run() {
  // Early enough for two more attempts.
  absl::Duration wait = ttl_ / 3;
  while (true) {
    int64_t id;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && id_ == 0) wake_.wait(mutex_);
      const absl::Time due = clock_.now() + wait;
      while (!stopping_ && clock_.now() < due) clock_.wait_until(mutex_, wake_, due);
      if (stopping_) return;
      id = id_;
    }
    wait = ttl_ / 3;
    if (id != 0 && !keep_alive(id)) wait = std::min(wait, kRetryAfter);
  }
}

bool EtcdLease::keep_alive(int64_t id) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(id);
  etcdserverpb::LeaseKeepAliveResponse response;
  const grpc::Status status = client_.call_once(clock_.now() + std::max(ttl_ / 3, absl::Seconds(1)),
                                                [&](const EtcdMember& member, grpc::ClientContext& context) {
                                                  {
                                                    MutexLock lock(mutex_);
                                                    if (stopping_) return grpc::Status::CANCELLED;
                                                    context_ = &context;
                                                  }
                                                  auto stream = member.lease->LeaseKeepAlive(&context);
                                                  const bool answered =
                                                      stream->Write(request) && stream->Read(&response);
                                                  stream->WritesDone();
                                                  if (answered) context.TryCancel();
                                                  const grpc::Status end = stream->Finish();
                                                  MutexLock lock(mutex_);
                                                  context_ = nullptr;
                                                  return answered ? grpc::Status::OK : end;
                                                });
  if (!status.ok()) return false;
  if (response.ttl() <= 0) lost(id);
  return true;
}

}  // namespace gradwire::store
