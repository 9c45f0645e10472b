#include "gradwire/store/calls/table_calls.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

using Wakeups = StoreTable::Wakeups;

absl::Status set(StoreTable& table, const proto::SetRequest& request, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_store_key(request.key()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(request.value()));
  return table.set(request.key(), request.value(), wakeups);
}

absl::Status multi_set(StoreTable& table, const proto::MultiSetRequest& request, Wakeups& wakeups) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, unpack_checked_keys(request.keys()));
  const std::optional<std::vector<std::string>> values = unpack_keys(request.values());
  if (!values.has_value() || values->size() != keys.size()) {
    return absl::InvalidArgumentError("malformed list of values, or another number of values than of keys");
  }
  std::vector<StoreTable::Entry> entries;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    GRADWIRE_RETURN_IF_ERROR(check_store_value((*values)[i]));
    entries.emplace_back(keys[i], (*values)[i]);
  }
  return table.set_all(entries, wakeups);
}

absl::Status add(StoreTable& table, const proto::AddRequest& request, proto::AddResponse& response,
                 Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_store_key(request.key()));
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t sum, table.add(request.key(), request.n(), wakeups));
  response.set_sum(sum);
  return absl::OkStatus();
}

absl::Status append(StoreTable& table, const proto::AppendRequest& request, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_store_key(request.key()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(request.value()));
  return table.append(request.key(), request.value(), wakeups);
}

absl::Status compare_set(StoreTable& table, const proto::CompareSetRequest& request,
                         proto::CompareSetResponse& response, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_store_key(request.key()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(request.expected()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(request.desired()));
  GRADWIRE_ASSIGN_OR_RETURN(std::string current,
                            table.compare_set(request.key(), request.expected(), request.desired(), wakeups));
  response.set_current(std::move(current));
  return absl::OkStatus();
}

absl::Status list_keys(const StoreTable& table, const proto::ListKeysRequest& request,
                       proto::ListKeysResponse& response) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, table.list_keys(request.prefix()));
  pack_keys(keys, *response.mutable_keys());
  return absl::OkStatus();
}

absl::Status check(const StoreTable& table, const proto::CheckRequest& request,
                   proto::CheckResponse& response) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, unpack_checked_keys(request.keys()));
  response.set_all_exist(table.missing(keys).empty());
  return absl::OkStatus();
}

absl::Status queue_push(StoreTable& table, const proto::QueuePushRequest& request, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_store_key(request.queue()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(request.value()));
  return table.push(request.queue(), request.value(), wakeups);
}

}  // namespace

absl::Status check_store_key(absl::string_view key) {
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a key of ", key.size(), " bytes is over the limit of ", kMaxKeyBytes));
}

absl::Status check_store_value(absl::string_view value) {
  if (value.size() <= kMaxValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a value of ", value.size(), " bytes is over the limit of ", kMaxValueBytes));
}

absl::StatusOr<std::vector<std::string>> unpack_checked_keys(const proto::KeyList& list) {
  std::optional<std::vector<std::string>> keys = unpack_keys(list);
  if (!keys.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed list of keys, or more than ", kMaxKeysPerWait, " keys"));
  }
  for (const std::string& key : *keys) GRADWIRE_RETURN_IF_ERROR(check_store_key(key));
  return *std::move(keys);
}

absl::Status apply_table_call(StoreTable& table, const proto::Request& request, proto::Response& response,
                              StoreTable::Wakeups& wakeups) {
  switch (request.call_case()) {
    case proto::Request::kSet:
      response.mutable_set();
      return set(table, request.set(), wakeups);
    case proto::Request::kMultiSet:
      response.mutable_multi_set();
      return multi_set(table, request.multi_set(), wakeups);
    case proto::Request::kAdd:
      return add(table, request.add(), *response.mutable_add(), wakeups);
    case proto::Request::kAppend:
      response.mutable_append();
      return append(table, request.append(), wakeups);
    case proto::Request::kCompareSet:
      return compare_set(table, request.compare_set(), *response.mutable_compare_set(), wakeups);
    case proto::Request::kDeleteKey:
      response.mutable_delete_key()->set_existed(table.erase(request.delete_key().key()));
      return absl::OkStatus();
    case proto::Request::kNumKeys:
      response.mutable_num_keys()->set_count(table.num_keys(request.num_keys().prefix()));
      return absl::OkStatus();
    case proto::Request::kListKeys:
      return list_keys(table, request.list_keys(), *response.mutable_list_keys());
    case proto::Request::kCheck:
      return check(table, request.check(), *response.mutable_check());
    case proto::Request::kQueuePush:
      response.mutable_queue_push();
      return queue_push(table, request.queue_push(), wakeups);
    case proto::Request::kQueueLen:
      response.mutable_queue_len()->set_length(table.queue_len(request.queue_len().queue()));
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          "unknown request: client and server are different versions of Gradwire");
  }
}

}  // namespace gradwire::store
