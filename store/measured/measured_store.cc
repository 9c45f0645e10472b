#include "gradwire/store/measured/measured_store.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::store {

uint64_t StoreTimes::begin(const char* operation, absl::Time now) {
  MutexLock lock(mutex_);
  open_.emplace(next_, Call{operation, now, absl::ZeroDuration()});
  return next_++;
}

void StoreTimes::end(uint64_t call, absl::Time now) {
  MutexLock lock(mutex_);
  const auto found = open_.find(call);
  if (found == open_.end()) return;
  Call ended = found->second;
  open_.erase(found);
  ended.took = now - ended.began;
  ended_.push_back(ended);
  if (ended_.size() > kKept) ended_.pop_front();
}

void StoreTimes::set_store(std::string description) {
  MutexLock lock(mutex_);
  store_ = std::move(description);
}

StoreTimes::View StoreTimes::view(absl::Time now) const {
  MutexLock lock(mutex_);
  View view;
  view.store = store_;
  absl::Duration all;
  for (const Call& call : ended_) {
    if (now - (call.began + call.took) > kRecent) continue;
    ++view.calls;
    all += call.took;
    if (call.took < view.slowest || call.took == absl::ZeroDuration()) continue;
    view.slowest = call.took;
    view.slowest_operation = call.operation;
  }
  if (view.calls > 0) view.mean = all / static_cast<int64_t>(view.calls);
  if (!open_.empty()) {
    view.open = now - open_.begin()->second.began;
    view.open_operation = open_.begin()->second.operation;
  }
  return view;
}

namespace {

template <class T>
absl::StatusCode code_of(const absl::StatusOr<T>& result) {
  return result.status().code();
}
absl::StatusCode code_of(const absl::Status& status) { return status.code(); }

}  // namespace

// A call to a store is a message to another process, so the search for its metrics does not count.
template <class Call>
auto MeasuredStore::measured_wait(const char* operation, const Call& call) -> decltype(call()) {
  const absl::Time start = clock().now();
  auto result = call();
  registry_->histogram(metrics::Metric::kStoreCallSeconds, {operation}).record(clock().now() - start);
  registry_->counter(metrics::Metric::kStoreCalls, {operation, absl::StatusCodeToString(code_of(result))})
      .add();
  return result;
}

template <class Call>
auto MeasuredStore::measured(const char* operation, const Call& call) -> decltype(call()) {
  const uint64_t number = times_->begin(operation, clock().now());
  auto result = measured_wait(operation, call);
  times_->end(number, clock().now());
  return result;
}

absl::Status MeasuredStore::do_set(absl::Span<const Entry> entries, absl::Time deadline) {
  return measured("set", [&] { return ForwardingStore::do_set(entries, deadline); });
}

absl::Status MeasuredStore::do_append(absl::string_view key, absl::string_view value, absl::Time deadline) {
  return measured("append", [&] { return ForwardingStore::do_append(key, value, deadline); });
}

absl::StatusOr<int64_t> MeasuredStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  return measured("add", [&] { return ForwardingStore::do_add(key, n, deadline); });
}

absl::StatusOr<std::string> MeasuredStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                          absl::string_view desired, absl::Time deadline) {
  return measured("compare_set",
                  [&] { return ForwardingStore::do_compare_set(key, expected, desired, deadline); });
}

absl::StatusOr<bool> MeasuredStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  return measured("delete_key", [&] { return ForwardingStore::do_delete_key(key, deadline); });
}

absl::StatusOr<int64_t> MeasuredStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  return measured("num_keys", [&] { return ForwardingStore::do_num_keys(prefix, deadline); });
}

absl::StatusOr<std::vector<std::string>> MeasuredStore::do_list_keys(absl::string_view prefix,
                                                                     absl::Time deadline) {
  return measured("list_keys", [&] { return ForwardingStore::do_list_keys(prefix, deadline); });
}

absl::StatusOr<bool> MeasuredStore::do_check(const std::vector<std::string>& keys, absl::Time deadline) {
  return measured("check", [&] { return ForwardingStore::do_check(keys, deadline); });
}

absl::StatusOr<std::vector<std::string>> MeasuredStore::do_wait(const std::vector<std::string>& keys,
                                                                absl::Time deadline) {
  return measured_wait("wait", [&] { return ForwardingStore::do_wait(keys, deadline); });
}

absl::StatusOr<Store::Values> MeasuredStore::do_multi_get(const std::vector<std::string>& keys,
                                                          absl::Time deadline) {
  return measured_wait("multi_get", [&] { return ForwardingStore::do_multi_get(keys, deadline); });
}

absl::StatusOr<std::optional<std::string>> MeasuredStore::do_watch(
    absl::string_view key, std::optional<absl::string_view> last_value, absl::Time deadline) {
  return measured_wait(last_value.has_value() ? "watch" : "get",
                       [&] { return ForwardingStore::do_watch(key, last_value, deadline); });
}

absl::Status MeasuredStore::do_queue_push(absl::string_view queue, absl::string_view value,
                                          absl::Time deadline) {
  return measured("queue_push", [&] { return ForwardingStore::do_queue_push(queue, value, deadline); });
}

absl::StatusOr<std::optional<std::string>> MeasuredStore::do_queue_pop(absl::string_view queue,
                                                                       absl::Time deadline) {
  return measured_wait("queue_pop", [&] { return ForwardingStore::do_queue_pop(queue, deadline); });
}

absl::StatusOr<int64_t> MeasuredStore::do_queue_len(absl::string_view queue, absl::Time deadline) {
  return measured("queue_len", [&] { return ForwardingStore::do_queue_len(queue, deadline); });
}

absl::StatusOr<std::shared_ptr<Store>> MeasuredStore::do_clone(absl::Time deadline) {
  absl::StatusOr<std::shared_ptr<Store>> copy = underlying()->try_clone(deadline - clock().now());
  if (!copy.ok()) return copy.status();
  return std::make_shared<MeasuredStore>(*std::move(copy), registry_, times_);
}

}  // namespace gradwire::store
