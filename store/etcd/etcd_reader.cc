#include "gradwire/store/etcd/etcd_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/etcd/etcd_status.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

// Limits of one transaction. By default etcd accepts 128 operations and 1.5 MiB.
constexpr std::size_t kMaxKeysPerRead = 100;
constexpr std::size_t kMaxBytesPerRead = std::size_t{1} << 20;

}  // namespace

// Returns the first key behind all keys with this prefix, which etcd calls the end of a range.
std::string end_of_prefix(std::string prefix) {
  // Bytes that cannot be increased are dropped. The prefix contains a "/", so it does not become empty.
  while (prefix.back() == '\xff') prefix.pop_back();
  ++prefix.back();
  return prefix;
}

absl::StatusOr<EtcdValue> parse_etcd_value(const EtcdClient& client, etcdserverpb::RangeResponse& response,
                                           absl::string_view key) {
  if (response.kvs().empty()) return EtcdValue();
  etcdserverpb::KeyValue& found = *response.mutable_kvs(0);
  if (response.kvs_size() != 1 || found.key() != key || found.mod_revision() <= 0) {
    return client.not_etcd_error("its answer is for another key than the requested one");
  }
  if (found.value().size() > kMaxValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a value of ", found.value().size(),
                                                     " bytes in etcd is over the limit of ", kMaxValueBytes));
  }
  return EtcdValue{std::move(*found.mutable_value()), found.mod_revision()};
}

// The revision of the answer is the moment of the read. A watch continues after it.
absl::StatusOr<EtcdReader::Found> EtcdReader::get(const std::string& key, absl::Time deadline) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  etcdserverpb::RangeResponse response;
  GRADWIRE_RETURN_IF_ERROR(
      client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
        response.Clear();
        return member.kv->Range(&context, request, &response);
      }));
  Found found;
  GRADWIRE_ASSIGN_OR_RETURN(found.now, parse_etcd_value(client_, response, key));
  found.revision = response.header().revision();
  if (found.revision < found.now.mod_revision) return client_.not_etcd_error("its revisions decrease");
  return found;
}

absl::StatusOr<int64_t> EtcdReader::count_under(const std::string& prefix, absl::Time deadline) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(end_of_prefix(prefix));
  request.set_count_only(true);
  etcdserverpb::RangeResponse response;
  GRADWIRE_RETURN_IF_ERROR(
      client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
        response.Clear();
        return member.kv->Range(&context, request, &response);
      }));
  if (response.count() < 0) return client_.not_etcd_error("its count of keys is negative");
  return response.count();
}

// Pages, so that no answer is over the size of a message. All pages are of the revision of the first.
absl::StatusOr<std::vector<std::string>> EtcdReader::list_under(const std::string& prefix, std::size_t skip,
                                                                absl::Time deadline) {
  constexpr int64_t kKeysPerPage = 1000;
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(end_of_prefix(prefix));
  request.set_keys_only(true);
  request.set_limit(kKeysPerPage);
  std::vector<std::string> keys;
  std::size_t bytes = 0;
  while (true) {
    etcdserverpb::RangeResponse response;
    GRADWIRE_RETURN_IF_ERROR(
        client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
          response.Clear();
          return member.kv->Range(&context, request, &response);
        }));
    for (const etcdserverpb::KeyValue& found : response.kvs()) {
      if (found.key().compare(0, prefix.size(), prefix) != 0) {
        return client_.not_etcd_error("it returned a key outside of the requested range");
      }
      bytes += found.key().size() - skip + kListedKeyBytes;
      if (bytes > kMaxListBytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the names of the keys take more than the limit of ", kMaxListBytes, " bytes"));
      }
      keys.push_back(found.key().substr(skip));
    }
    if (!response.more() || response.kvs().empty()) return keys;
    // The next key in the order of bytes.
    request.set_key(response.kvs(response.kvs_size() - 1).key() + '\0');
    request.set_revision(response.header().revision());
  }
}

absl::StatusOr<bool> EtcdReader::all_exist(const std::vector<std::string>& keys, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Missing missing, find_missing(keys, 0, /*first_only=*/true, deadline));
  return missing.indices.empty();
}

absl::StatusOr<std::optional<std::string>> EtcdReader::watch(const std::string& key,
                                                             std::optional<absl::string_view> last_value,
                                                             absl::Time deadline) {
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(Found found, get(key, deadline));
    if (found.now.value.has_value() && found.now.value != last_value) return std::move(found.now.value);
    if (clock_.now() >= deadline) return std::optional<std::string>();
    GRADWIRE_ASSIGN_OR_RETURN(Watched watched, watch_from(key, last_value, found.revision + 1, deadline));
    if (watched.timed_out) return std::optional<std::string>();
    if (watched.value.has_value()) return std::move(watched.value);
  }
}

absl::StatusOr<std::vector<std::size_t>> EtcdReader::wait(const std::vector<std::string>& keys,
                                                          absl::Time deadline) {
  std::size_t start = 0;
  while (true) {
    // After the deadline: read a last time, and find all missing keys.
    const bool last = clock_.now() >= deadline;
    absl::StatusOr<Missing> missing = find_missing(keys, last ? 0 : start, !last, deadline);
    // The revision that was read has been compacted: read again.
    if (absl::IsOutOfRange(missing.status()) && !last) continue;
    GRADWIRE_RETURN_IF_ERROR(missing.status());
    if (last || missing->indices.empty()) return std::move(missing->indices);
    // The keys cannot all exist before this one does, so wait for it. The next read begins with it: the keys
    // before it existed.
    start = missing->indices.front();
    GRADWIRE_RETURN_IF_ERROR(watch_from(keys[start], std::nullopt, missing->revision + 1, deadline).status());
  }
}

// Checks the keys from index `start` on, then those before it. The order puts the key first that was
// missing in the last read. With `first_only` it returns after one missing key.
absl::StatusOr<EtcdReader::Missing> EtcdReader::find_missing(const std::vector<std::string>& keys,
                                                             std::size_t start, bool first_only,
                                                             absl::Time deadline) {
  Missing missing{{}, 0};
  for (std::size_t checked = 0; checked < keys.size();) {
    // All transactions read the revision of the first one, so that the result is for one moment.
    etcdserverpb::TxnRequest request;
    std::size_t bytes = 0, count = 0;
    for (; checked + count < keys.size() && count < kMaxKeysPerRead; ++count) {
      const std::string& key = keys[(start + checked + count) % keys.size()];
      if (count > 0 && bytes + key.size() > kMaxBytesPerRead) break;
      bytes += key.size();
      etcdserverpb::RangeRequest& range = *request.add_success()->mutable_request_range();
      range.set_key(key);
      range.set_count_only(true);
      // 0 in the first transaction: the newest revision.
      range.set_revision(missing.revision);
    }
    etcdserverpb::TxnResponse response;
    GRADWIRE_RETURN_IF_ERROR(
        client_.call(deadline, [&](const EtcdMember& member, grpc::ClientContext& context) {
          response.Clear();
          return member.kv->Txn(&context, request, &response);
        }));
    if (response.responses_size() != static_cast<int>(count) || response.header().revision() <= 0) {
      return client_.not_etcd_error("its number of answers differs from the number of requests");
    }
    if (missing.revision == 0) missing.revision = response.header().revision();
    for (std::size_t i = 0; i < count; ++i) {
      if (response.responses(static_cast<int>(i)).response_range().count() > 0) continue;
      missing.indices.push_back((start + checked + i) % keys.size());
      if (first_only) return missing;
    }
    checked += count;
  }
  std::sort(missing.indices.begin(), missing.indices.end());
  return missing;
}

// How EtcdReader waits. A watch is a stream on which etcd sends the changes of a key from a revision on:
//   1. The store has read the key at revision R and watches from R + 1, so that it misses no change.
//   2. etcd confirms that the watch is created, and sends its own revision; then it sends the changes.
//   3. When the stream breaks, the next one, perhaps at another member, watches from the revision after the
//      last one that was received.
//   4. If etcd no longer has that revision (it was compacted), or does not have it yet (its data was lost or
//      restored from a backup), the store reads the key again.

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
