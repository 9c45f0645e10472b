#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::store {

// Forwards every call to another store. Tests derive from it and override the calls that shall fail.
// Thread-safe.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::string description() const override { return store_->description(); }

 protected:
  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override {
    return store_->try_set(key, value, left(deadline));
  }
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override {
    return store_->try_add(key, n, left(deadline));
  }
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override {
    return store_->try_compare_set(key, expected, desired, left(deadline));
  }
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override {
    return store_->try_delete_key(key, left(deadline));
  }
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override {
    return store_->try_num_keys_under(prefix, left(deadline));
  }
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override {
    const absl::Status waited = store_->try_wait(keys, left(deadline));
    if (absl::IsDeadlineExceeded(waited)) return keys;
    if (!waited.ok()) return waited;
    return std::vector<std::string>();
  }
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override {
    absl::StatusOr<std::string> value = last_value.has_value()
                                            ? store_->try_watch(key, *last_value, left(deadline))
                                            : store_->try_get(key, left(deadline));
    if (absl::IsDeadlineExceeded(value.status())) return std::optional<std::string>();
    if (!value.ok()) return value.status();
    return std::optional<std::string>(*std::move(value));
  }

 private:
  absl::Duration left(absl::Time deadline) const {
    return std::max(absl::ZeroDuration(), deadline - clock().now());
  }

  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire::store
