#include "gradwire/store/etcd/etcd_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/memory/limits.h"

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

}  // namespace gradwire::store
