#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/store/interface/forwarding_store.h"

namespace gradwire::rpc::testing {

// A store that forwards its calls to another store until the test cuts the connection. With it, a test takes
// the store from one worker only. The cut also ends calls that began before it. Thread-safe.
class CutStore : public store::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  // All calls fail at once with Unavailable, until restore().
  void cut() { cut_ = true; }
  // No call is answered until restore(): calls fail with DeadlineExceeded at their deadline.
  void silence() {
    MutexLock lock(mutex_);
    silent_ = cut_ = true;
  }
  // All calls fail at once with Aborted, as those of a store whose server was started again without its keys.
  void replace() {
    MutexLock lock(mutex_);
    replaced_ = cut_ = true;
  }
  // Number of calls so far.
  int calls() const { return calls_; }
  void restore() {
    MutexLock lock(mutex_);
    silent_ = cut_ = false;
    restored_.notify_all();
  }
  std::string description() const override { return "CutStore over " + ForwardingStore::description(); }

 private:
  absl::Status do_set(absl::Span<const Entry> entries, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_set(entries, deadline); });
  }
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_add(key, n, deadline); });
  }
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override {
    return unless_cut(deadline,
                      [&] { return ForwardingStore::do_compare_set(key, expected, desired, deadline); });
  }
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_delete_key(key, deadline); });
  }
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_num_keys(prefix, deadline); });
  }
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_wait(keys, deadline); });
  }
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_watch(key, last_value, deadline); });
  }

  absl::Status do_append(absl::string_view key, absl::string_view value, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_append(key, value, deadline); });
  }
  absl::StatusOr<std::vector<std::string>> do_list_keys(absl::string_view prefix,
                                                        absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_list_keys(prefix, deadline); });
  }
  absl::StatusOr<bool> do_check(const std::vector<std::string>& keys, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_check(keys, deadline); });
  }
  absl::StatusOr<Values> do_multi_get(const std::vector<std::string>& keys, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_multi_get(keys, deadline); });
  }
  absl::Status do_queue_push(absl::string_view queue, absl::string_view value, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_queue_push(queue, value, deadline); });
  }
  absl::StatusOr<std::optional<std::string>> do_queue_pop(absl::string_view queue,
                                                          absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_queue_pop(queue, deadline); });
  }
  absl::StatusOr<int64_t> do_queue_len(absl::string_view queue, absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_queue_len(queue, deadline); });
  }
  absl::StatusOr<std::shared_ptr<Store>> do_clone(absl::Time deadline) override {
    return unless_cut(deadline, [&] { return ForwardingStore::do_clone(deadline); });
  }

  template <class F>
  auto unless_cut(absl::Time deadline, F call) -> decltype(call()) {
    ++calls_;
    if (cut_) return lost(deadline);
    auto result = call();
    if (cut_) return lost(deadline);
    return result;
  }
  absl::Status lost(absl::Time deadline) {
    MutexLock lock(mutex_);
    if (replaced_) return absl::AbortedError("replaced by the test: the keys are lost");
    if (!silent_) return absl::UnavailableError("cut off from the store by the test");
    while (silent_ && clock().now() < deadline) restored_.wait_for(mutex_, deadline - clock().now());
    return absl::DeadlineExceededError("the store does not answer: silenced by the test");
  }

  std::atomic<bool> cut_{false};
  std::atomic<int> calls_{0};
  Mutex mutex_;
  CondVar restored_;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool replaced_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::rpc::testing
