// The common part of all stores: each operation checks the sizes, computes its deadline, calls the do_
// method of the store, and turns a timeout of a wait into an error that names the missing keys.

#include "gradwire/store/interface/store.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/interface/quoted_key.h"

namespace gradwire::store {
namespace {

std::string quoted_list(const std::vector<std::string>& keys) {
  constexpr std::size_t kShown = 16;
  std::string list;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i) {
    absl::StrAppend(&list, i == 0 ? "" : ", ", quoted_key(keys[i]));
  }
  if (keys.size() > kShown) absl::StrAppend(&list, " and ", keys.size() - kShown, " more");
  return list;
}

absl::Status check_key(absl::string_view key) {
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a store key of ", key.size(), " bytes is over the limit of ", kMaxKeyBytes, ": ", quoted_key(key)));
}

absl::Status check_value(absl::string_view key, absl::string_view value) {
  if (value.size() <= kMaxValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a value of ", value.size(), " bytes for store key ",
                                                   quoted_key(key), " is over the limit of ",
                                                   kMaxValueBytes));
}

absl::Status check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxKeysPerWait) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a call for ", keys.size(), " store keys is over the limit of ", kMaxKeysPerWait));
  }
  for (const std::string& key : keys) GRADWIRE_RETURN_IF_ERROR(check_key(key));
  return absl::OkStatus();
}

// Marks the error of a wait that ended because the key was not set. A store that did not answer in time
// fails with the same code, but without this payload.
constexpr char kWaitTimeout[] = "gradwire/store-wait-timeout";

absl::Status wait_timeout(absl::string_view message) {
  absl::Status status = absl::DeadlineExceededError(message);
  status.SetPayload(kWaitTimeout, absl::Cord());
  return status;
}

}  // namespace

bool is_wait_timeout(const absl::Status& status) { return status.GetPayload(kWaitTimeout).has_value(); }

Store::Store(absl::Duration timeout, Clock& clock) : clock_(clock), timeout_(timeout) {}

void Store::set_timeout(absl::Duration timeout) {
  MutexLock lock(timeout_mutex_);
  timeout_ = timeout;
}

absl::Duration Store::timeout() const {
  MutexLock lock(timeout_mutex_);
  return timeout_;
}

absl::Status Store::check_process() const {
  if (works_in_children()) return absl::OkStatus();
  return mark_.check([this] { return absl::StrCat("the ", description()); });
}

absl::Time Store::deadline_of(Timeout timeout) const {
  return clock_.now() + (timeout.has_value() ? *timeout : this->timeout());
}

absl::Status Store::try_set(absl::string_view key, absl::string_view value, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  GRADWIRE_RETURN_IF_ERROR(check_value(key, value));
  const Entry entry(key, value);
  return do_set(absl::MakeConstSpan(&entry, 1), deadline_of(timeout));
}

absl::Status Store::try_multi_set(const std::vector<std::string>& keys,
                                  const std::vector<std::string>& values, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(absl::StrCat("multi_set: got ", keys.size(), " keys and ",
                                                   values.size(),
                                                   " values, expected as many values as keys"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_keys(keys));
  std::vector<Entry> entries;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    GRADWIRE_RETURN_IF_ERROR(check_value(keys[i], values[i]));
    entries.emplace_back(keys[i], values[i]);
    bytes += keys[i].size() + values[i].size();
  }
  if (bytes > kMaxMultiBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("multi_set: keys and values of ", bytes,
                                                     " bytes are over the limit of ", kMaxMultiBytes));
  }
  // Without a call to the store.
  if (entries.empty()) return absl::OkStatus();
  return do_set(entries, deadline_of(timeout));
}

absl::Status Store::try_append(absl::string_view key, absl::string_view value, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  GRADWIRE_RETURN_IF_ERROR(check_value(key, value));
  return do_append(key, value, deadline_of(timeout));
}

absl::StatusOr<std::string> Store::try_get(absl::string_view key, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  return wait_for_value(key, std::nullopt, timeout);
}

absl::StatusOr<int64_t> Store::try_add(absl::string_view key, int64_t n, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  return do_add(key, n, deadline_of(timeout));
}

absl::StatusOr<std::string> Store::try_compare_set(absl::string_view key, absl::string_view expected,
                                                   absl::string_view desired, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  GRADWIRE_RETURN_IF_ERROR(check_value(key, expected));
  GRADWIRE_RETURN_IF_ERROR(check_value(key, desired));
  return do_compare_set(key, expected, desired, deadline_of(timeout));
}

absl::StatusOr<bool> Store::try_delete_key(absl::string_view key, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  return do_delete_key(key, deadline_of(timeout));
}

absl::StatusOr<int64_t> Store::try_num_keys(Timeout timeout) { return try_num_keys_under("", timeout); }

absl::StatusOr<int64_t> Store::try_num_keys_under(absl::string_view prefix, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(prefix));
  return do_num_keys(prefix, deadline_of(timeout));
}

absl::StatusOr<std::vector<std::string>> Store::try_list_keys(Timeout timeout) {
  return try_list_keys_under("", timeout);
}

absl::StatusOr<std::vector<std::string>> Store::try_list_keys_under(absl::string_view prefix,
                                                                    Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(prefix));
  return do_list_keys(prefix, deadline_of(timeout));
}

absl::StatusOr<bool> Store::try_check(const std::vector<std::string>& keys, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_keys(keys));
  // Without a call to the store.
  if (keys.empty()) return true;
  return do_check(keys, deadline_of(timeout));
}

absl::Status Store::try_wait(const std::vector<std::string>& keys, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_keys(keys));
  // Without a call to the store.
  if (keys.empty()) return absl::OkStatus();
  const absl::Time start = clock_.now();
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> missing, do_wait(keys, deadline_of(timeout)));
  if (missing.empty()) return absl::OkStatus();
  return timeout_error(start, quoted_list(missing), "no such key has been set");
}

absl::StatusOr<std::vector<std::string>> Store::try_multi_get(const std::vector<std::string>& keys,
                                                              Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_keys(keys));
  // Without a call to the store.
  if (keys.empty()) return std::vector<std::string>();
  const absl::Time start = clock_.now();
  GRADWIRE_ASSIGN_OR_RETURN(Values values, do_multi_get(keys, deadline_of(timeout)));
  if (values.missing.empty()) return std::move(values.values);
  return timeout_error(start, quoted_list(values.missing), "no such key has been set");
}

absl::StatusOr<std::string> Store::try_watch(absl::string_view key, absl::string_view last_value,
                                             Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  return wait_for_value(key, last_value, timeout);
}

absl::StatusOr<std::string> Store::wait_for_value(absl::string_view key,
                                                  std::optional<absl::string_view> last_value,
                                                  Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_key(key));
  if (last_value.has_value()) GRADWIRE_RETURN_IF_ERROR(check_value(key, *last_value));
  const absl::Time start = clock_.now();
  GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> value,
                            do_watch(key, last_value, deadline_of(timeout)));
  if (value.has_value()) return *std::move(value);
  return timeout_error(
      start, quoted_key(key),
      last_value.has_value() ? "it has no value other than the one given" : "no such key has been set");
}

absl::Status Store::timeout_error(absl::Time start, absl::string_view what, absl::string_view why) const {
  return wait_timeout(
      absl::StrCat("waited ", absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1))),
                   " in the ", description(), " for ", what, ": ", why));
}

absl::Status Store::try_queue_push(absl::string_view queue, absl::string_view value, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(queue));
  GRADWIRE_RETURN_IF_ERROR(check_value(queue, value));
  return do_queue_push(queue, value, deadline_of(timeout));
}

absl::StatusOr<std::string> Store::try_queue_pop(absl::string_view queue, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(queue));
  const absl::Time start = clock_.now();
  GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> item, do_queue_pop(queue, deadline_of(timeout)));
  if (item.has_value()) return *std::move(item);
  return timeout_error(start, absl::StrCat("an item of the queue ", quoted_key(queue)), "the queue is empty");
}

absl::StatusOr<int64_t> Store::try_queue_len(absl::string_view queue, Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_RETURN_IF_ERROR(check_key(queue));
  return do_queue_len(queue, deadline_of(timeout));
}

absl::StatusOr<std::shared_ptr<Store>> Store::try_clone(Timeout timeout) {
  GRADWIRE_RETURN_IF_ERROR(check_process());
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> copy, do_clone(deadline_of(timeout)));
  copy->set_timeout(this->timeout());
  return copy;
}

void Store::set(absl::string_view key, absl::string_view value) { throw_if_error(try_set(key, value)); }

std::string Store::get(absl::string_view key) { return value_or_throw(try_get(key)); }

int64_t Store::add(absl::string_view key, int64_t n) { return value_or_throw(try_add(key, n)); }

std::string Store::compare_set(absl::string_view key, absl::string_view expected, absl::string_view desired) {
  return value_or_throw(try_compare_set(key, expected, desired));
}

bool Store::delete_key(absl::string_view key) { return value_or_throw(try_delete_key(key)); }

int64_t Store::num_keys() { return value_or_throw(try_num_keys()); }

void Store::append(absl::string_view key, absl::string_view value) { throw_if_error(try_append(key, value)); }

std::vector<std::string> Store::list_keys() { return value_or_throw(try_list_keys()); }

bool Store::check(const std::vector<std::string>& keys) { return value_or_throw(try_check(keys)); }

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys) {
  return value_or_throw(try_multi_get(keys));
}

void Store::multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  throw_if_error(try_multi_set(keys, values));
}

void Store::queue_push(absl::string_view queue, absl::string_view value) {
  throw_if_error(try_queue_push(queue, value));
}

std::string Store::queue_pop(absl::string_view queue, Timeout timeout) {
  return value_or_throw(try_queue_pop(queue, timeout));
}

int64_t Store::queue_len(absl::string_view queue) { return value_or_throw(try_queue_len(queue)); }

std::shared_ptr<Store> Store::clone() { return value_or_throw(try_clone()); }

void Store::wait(const std::vector<std::string>& keys) { throw_if_error(try_wait(keys)); }

void Store::wait(const std::vector<std::string>& keys, absl::Duration timeout) {
  throw_if_error(try_wait(keys, timeout));
}

std::string Store::watch(absl::string_view key, absl::string_view last_value, Timeout timeout) {
  return value_or_throw(try_watch(key, last_value, timeout));
}

}  // namespace gradwire::store
