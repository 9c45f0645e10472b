#include "gradwire/store/memory/forwarding_store.h"

#include "gradwire/base/error.h"

namespace gradwire::store {

absl::Status ForwardingStore::do_set(absl::string_view key, absl::string_view value, absl::Time deadline) {
  return store_->try_set(full(key), value, left(deadline));
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

// The other store's error already names the missing full keys and the time waited.
absl::StatusOr<std::vector<std::string>> ForwardingStore::do_wait(const std::vector<std::string>& keys,
                                                                  absl::Time deadline) {
  std::vector<std::string> full_keys;
  full_keys.reserve(keys.size());
  for (const std::string& key : keys) full_keys.push_back(full(key));
  GRADWIRE_RETURN_IF_ERROR(store_->try_wait(full_keys, left(deadline)));
  return std::vector<std::string>();
}

absl::StatusOr<std::optional<std::string>> ForwardingStore::do_watch(
    absl::string_view key, std::optional<absl::string_view> last_value, absl::Time deadline) {
  absl::StatusOr<std::string> value = last_value.has_value()
                                          ? store_->try_watch(full(key), *last_value, left(deadline))
                                          : store_->try_get(full(key), left(deadline));
  if (!value.ok()) return value.status();
  return std::optional<std::string>(*std::move(value));
}

}  // namespace gradwire::store
