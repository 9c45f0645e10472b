#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/store.h"

namespace gradwire::rpc::testing {

// Another store, which one worker alone can be cut off from: meanwhile its calls end with Unavailable, also those that
// began before. Thread-safe.
class CutStore : public store::Store {
 public:
  explicit CutStore(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  void cut() { cut_ = true; }
  void restore() { cut_ = false; }
  std::string description() const override { return "CutStore over " + store_->description(); }

 private:
  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override {
    if (cut_) return lost();
    absl::Status status = store_->try_set(key, value, left(deadline));
    return cut_ ? lost() : status;
  }
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override {
    if (cut_) return lost();
    auto sum = store_->try_add(key, n, left(deadline));
    return cut_ ? lost() : sum;
  }
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override {
    if (cut_) return lost();
    auto value = store_->try_compare_set(key, expected, desired, left(deadline));
    return cut_ ? lost() : value;
  }
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override {
    if (cut_) return lost();
    auto deleted = store_->try_delete_key(key, left(deadline));
    return cut_ ? lost() : deleted;
  }
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override {
    if (cut_) return lost();
    auto count = store_->try_num_keys_under(prefix, left(deadline));
    return cut_ ? lost() : count;
  }
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override {
    if (cut_) return lost();
    const absl::Status status = store_->try_wait(keys, left(deadline));
    if (cut_) return lost();
    if (status.ok()) return std::vector<std::string>();
    if (absl::IsDeadlineExceeded(status)) return keys;
    return status;
  }
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override {
    if (cut_) return lost();
    absl::StatusOr<std::string> value = last_value ? store_->try_watch(key, *last_value, left(deadline))
                                                   : store_->try_get(key, left(deadline));
    if (cut_) return lost();
    if (value.ok()) return std::optional<std::string>(*std::move(value));
    if (absl::IsDeadlineExceeded(value.status())) return std::optional<std::string>();
    return value.status();
  }

  static absl::Status lost() { return absl::UnavailableError("cut off from the store by the test"); }
  absl::Duration left(absl::Time deadline) const {
    return std::max(absl::ZeroDuration(), deadline - clock().now());
  }

  const std::shared_ptr<store::Store> store_;
  std::atomic<bool> cut_{false};
};

}  // namespace gradwire::rpc::testing
