// A lease is requested by the first call that needs it (id). A thread keeps it alive until the destructor
// revokes it. If etcd reports that it has expired, on_lost() forgets it, and the next call requests a new
// one; the keys of the old one are gone.

#include "gradwire/store/etcd/etcd_lease.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::store {
namespace {

// How long closing may take if etcd does not answer; the lease then expires by itself.
constexpr absl::Duration kRevokeTimeout = absl::Seconds(2);
// Pause after a keep-alive that failed.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

}  // namespace

EtcdLease::EtcdLease(EtcdClient& client, absl::Duration ttl, std::string name, Clock& clock)
    : client_(client),
      ttl_(ttl),
      name_(std::move(name)),
      clock_(clock),
      thread_(value_or_throw(start_thread("etcd-lease", [this] { run(); }))) {}

EtcdLease::~EtcdLease() {
  int64_t id;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    id = id_;
    // The context is on the stack of the thread's call, which clears the pointer under this lock before it
    // returns. So it is valid here.
    if (context_ != nullptr) context_->TryCancel();
    wake_.notify_all();
  }
  thread_.join();
  if (id == 0) return;
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id);
  client_.call_once(clock_.now() + kRevokeTimeout,
                    [&](const EtcdMember& member, grpc::ClientContext& context) {
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
    // From here on other callers wait, also those that come while etcd does not answer.
    granting_ = true;
  }
  absl::StatusOr<int64_t> result = 0;
  {
    // If this call throws, another one requests the lease.
    const absl::Cleanup ended = [&] {
      MutexLock lock(mutex_);
      granting_ = false;
      if (result.ok()) id_ = *result;
      wake_.notify_all();
    };
    result = grant(deadline);
  }
  return result;
}

absl::StatusOr<int64_t> EtcdLease::grant(absl::Time deadline) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl_));
  etcdserverpb::LeaseGrantResponse response;
  // Repeating is safe: if an answer is lost, that lease has no keys and expires.
  GRADWIRE_RETURN_IF_ERROR(
      client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
        response.Clear();
        return member.lease->LeaseGrant(&context, request, &response);
      }));
  if (response.id() == 0) return client_.not_etcd_error("it granted a lease without an id");
  return response.id();
}

void EtcdLease::on_lost(int64_t id) {
  {
    MutexLock lock(mutex_);
    // Several calls may notice the same loss; a new lease must stay.
    if (id_ != id) return;
    id_ = 0;
  }
  log(LogLevel::kWarning, name_, ": lost all keys: their lease expired because etcd was not reached within ",
      absl::FormatDuration(ttl_));
}

void EtcdLease::run() {
  // A third of the TTL leaves time for two more attempts.
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

// Opens a stream for one request at the current member. After the answer the stream is cancelled: nothing
// more is expected on it.
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
                                                  const absl::Cleanup ended = [this] {
                                                    MutexLock lock(mutex_);
                                                    context_ = nullptr;
                                                  };
                                                  auto stream = member.lease->LeaseKeepAlive(&context);
                                                  const bool answered =
                                                      stream->Write(request) && stream->Read(&response);
                                                  stream->WritesDone();
                                                  if (answered) context.TryCancel();
                                                  const grpc::Status end = stream->Finish();
                                                  return answered ? grpc::Status::OK : end;
                                                });
  if (!status.ok()) return false;
  if (response.ttl() <= 0) on_lost(id);
  return true;
}

}  // namespace gradwire::store
