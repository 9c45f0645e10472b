// How EtcdReader waits. A watch is a stream on which etcd sends the changes of a key from a revision on:
//   1. The store has read the key at revision R and watches from R + 1, so that it misses no change.
//   2. etcd confirms that the watch is created, and sends its own revision; then it sends the changes.
//   3. When the stream breaks, the next one, perhaps at another member, watches from the revision after the
//      last one that was received.
//   4. If etcd no longer has that revision (it was compacted), or does not have it yet (its data was lost or
//      restored from a backup), the store reads the key again.

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/etcd/etcd_reader.h"
#include "gradwire/store/etcd/etcd_status.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

struct EtcdReader::Stream {
  const std::string& key;
  const std::optional<absl::string_view> last_value;
  const absl::Time deadline;
  int64_t revision;      // The first revision that has not been received.
  bool created = false;  // The watch is created, and the stream has not broken since.
  bool read_again = false;
  int denials = 0;
  std::optional<std::string> value;
  absl::Status error;
};

grpc::Status EtcdReader::follow(Stream& stream, const EtcdMember& member, grpc::ClientContext& context) {
  stream.created = false;
  etcdserverpb::WatchRequest request;
  etcdserverpb::WatchCreateRequest& create = *request.mutable_create_request();
  create.set_key(stream.key);
  create.set_start_revision(stream.revision);
  create.add_filters(etcdserverpb::WatchCreateRequest::NODELETE);
  create.set_fragment(true);
  const auto rpc = member.watch->Watch(&context);
  rpc->Write(request);
  etcdserverpb::WatchResponse response;
  while (rpc->Read(&response)) {
    if (response.canceled()) {
      context.TryCancel();
      rpc->Finish();
      if (response.compact_revision() > 0) {
        stream.read_again = true;
        return grpc::Status::OK;
      }
      const std::string reason = response.cancel_reason();
      // Some releases of etcd report an unknown token as "permission denied". The read before was permitted,
      // so renew the token once.
      const bool denied = absl::StrContains(reason, "permission denied");
      if (absl::StrContains(reason, "invalid auth token") || (denied && ++stream.denials == 1)) {
        return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, reason);
      }
      if (denied) return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, reason);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, absl::StrCat("the watch was ended: ", reason));
    }
    if (response.created()) {
      stream.created = true;
      stream.denials = 0;
      stream.read_again = response.header().revision() + 1 < stream.revision;
    }
    for (etcdserverpb::Event& event : *response.mutable_events()) {
      etcdserverpb::KeyValue& changed = *event.mutable_kv();
      if (changed.key() != stream.key || changed.value().size() > kMaxValueBytes) {
        stream.error = not_etcd(member.address, "it sent a change of a key that is not watched");
        break;
      }
      if (event.type() != etcdserverpb::Event::PUT || changed.value() == stream.last_value) {
        if (changed.mod_revision() >= stream.revision) stream.revision = changed.mod_revision() + 1;
        continue;
      }
      stream.value = std::move(*changed.mutable_value());
      break;
    }
    if (stream.read_again || stream.value.has_value() || !stream.error.ok()) {
      context.TryCancel();
      rpc->Finish();
      return grpc::Status::OK;
    }
  }
  grpc::Status end = rpc->Finish();
  // etcd knows the deadline and may be the first to end the call, with a text of its own.
  const bool by_etcd = end.error_code() == grpc::StatusCode::UNKNOWN &&
                       absl::StrContains(end.error_message(), "context deadline exceeded");
  if (by_etcd || (end.error_code() == grpc::StatusCode::CANCELLED && clock_.now() >= stream.deadline))
    end = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, end.error_message());
  if (end.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) stream.created = false;
  return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the watch ended") : end;
}

absl::StatusOr<EtcdReader::Watched> EtcdReader::watch_from(const std::string& key,
                                                           std::optional<absl::string_view> last_value,
                                                           int64_t revision, absl::Time deadline) {
  Stream stream{.key = key, .last_value = last_value, .deadline = deadline, .revision = revision};
  const absl::Status status =
      client_.call_until(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
        return follow(stream, member, context);
      });
  // The deadline passed while the watch worked: a timeout, not a failure of etcd.
  if (absl::IsDeadlineExceeded(status) || (!status.ok() && stream.created && clock_.now() >= deadline))
    return Watched{.timed_out = true};
  GRADWIRE_RETURN_IF_ERROR(status);
  GRADWIRE_RETURN_IF_ERROR(stream.error);
  return Watched{.value = std::move(stream.value)};
}

}  // namespace gradwire::store
