#include "gradwire/store/interface/forwarding_store.h"

#include "gradwire/base/error.h"

namespace gradwire::store {

std::vector<std::string> ForwardingStore::full_all(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(full(key));
  return result;
}

absl::Status ForwardingStore::do_set(absl::Span<const Entry> entries, absl::Time deadline) {
  if (entries.size() == 1) {
    return store_->try_set(full(entries[0].first), entries[0].second, left(deadline));
  }
  std::vector<std::string> keys, values;
  for (const auto& [key, value] : entries) {
    keys.push_back(full(key));
    values.emplace_back(value);
  }
  return store_->try_multi_set(keys, values, left(deadline));
}

absl::Status ForwardingStore::do_append(absl::string_view key, absl::string_view value, absl::Time deadline) {
  return store_->try_append(full(key), value, left(deadline));
}

absl::StatusOr<int64_t> ForwardingStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  return store_->try_add(full(key), n, left(deadline));
}

absl::StatusOr<std::string> ForwardingStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                            absl::string_view desired, absl::Time deadline) {
  return store_->try_compare_set(full(key), expected, desired, left(deadline));
}

absl::StatusOr<bool> ForwardingStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  return store_->try_delete_key(full(key), left(deadline));
}

absl::StatusOr<int64_t> ForwardingStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  return store_->try_num_keys_under(full(prefix), left(deadline));
}

absl::StatusOr<std::vector<std::string>> ForwardingStore::do_list_keys(absl::string_view prefix,
                                                                       absl::Time deadline) {
  const std::size_t added = full("").size();
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<std::string> keys,
                            store_->try_list_keys_under(full(prefix), left(deadline)));
  for (std::string& key : keys) key.erase(0, added);
  return keys;
}

absl::StatusOr<bool> ForwardingStore::do_check(const std::vector<std::string>& keys, absl::Time deadline) {
  return store_->try_check(full_all(keys), left(deadline));
}

// The other store's error already names the missing full keys and the time waited.
absl::StatusOr<std::vector<std::string>> ForwardingStore::do_wait(const std::vector<std::string>& keys,
                                                                  absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(store_->try_wait(full_all(keys), left(deadline)));
  return std::vector<std::string>();
}

absl::StatusOr<Store::Values> ForwardingStore::do_multi_get(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<std::string> values,
                            store_->try_multi_get(full_all(keys), left(deadline)));
  return Values{std::move(values), {}};
}

absl::StatusOr<std::optional<std::string>> ForwardingStore::do_watch(
    absl::string_view key, std::optional<absl::string_view> last_value, absl::Time deadline) {
  absl::StatusOr<std::string> value = last_value.has_value()
                                          ? store_->try_watch(full(key), *last_value, left(deadline))
                                          : store_->try_get(full(key), left(deadline));
  if (!value.ok()) return value.status();
  return std::optional<std::string>(*std::move(value));
}

absl::Status ForwardingStore::do_queue_push(absl::string_view queue, absl::string_view value,
                                            absl::Time deadline) {
  return store_->try_queue_push(full(queue), value, left(deadline));
}

absl::StatusOr<std::optional<std::string>> ForwardingStore::do_queue_pop(absl::string_view queue,
                                                                         absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(std::string item, store_->try_queue_pop(full(queue), left(deadline)));
  return std::optional<std::string>(std::move(item));
}

absl::StatusOr<int64_t> ForwardingStore::do_queue_len(absl::string_view queue, absl::Time deadline) {
  return store_->try_queue_len(full(queue), left(deadline));
}

absl::StatusOr<std::shared_ptr<Store>> ForwardingStore::do_clone(absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> copy, store_->try_clone(left(deadline)));
  return std::make_shared<ForwardingStore>(std::move(copy));
}

}  // namespace gradwire::store
