#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::store {

// Forwards every call to another store, under another name of the key if a derived class says so. Begins with the other
// store's timeout and has its own from then on. Thread-safe.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store)
      : Store(store->timeout()), store_(std::move(store)) {}

  const std::shared_ptr<Store>& underlying() const { return store_; }
  std::string description() const override { return store_->description(); }

 protected:
  // What the other store calls this key, or the keys with this prefix.
  virtual std::string full(absl::string_view key) const { return std::string(key); }

  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override;
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override;
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override;
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override;

 private:
  absl::Duration left(absl::Time deadline) const { return deadline - clock().now(); }

  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire::store
