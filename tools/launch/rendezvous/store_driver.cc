#include "gradwire/tools/launch/rendezvous/store_driver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {
namespace {

// Calls that wait are cut into slices, so that the thread notices in time what it is asked.
constexpr absl::Duration kSlice = absl::Milliseconds(200);
constexpr absl::Duration kCall = absl::Seconds(2);
constexpr absl::Duration kAfterError = absl::Milliseconds(100);
// The most that one call takes where nobody answers. A longer one means that this process stood still, which
// says nothing about the store.
constexpr absl::Duration kLongestCall = absl::Seconds(8);
// Not a value of any key.
constexpr char kNothing[] = "?";

}  // namespace

bool may_pass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

absl::Duration StoreDriver::step() {
  const absl::Time began = clock_.now();
  const absl::StatusOr<absl::Duration> rest = try_step();
  if (rest.ok()) return *rest;
  on_error(rest.status(), began);
  return kAfterError;
}

absl::StatusOr<absl::Duration> StoreDriver::try_step() {
  if (!known_ && !ended()) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> bytes, read_now(kStateKey));
    take_in(std::move(bytes));
    return absl::ZeroDuration();
  }
  const Rendezvous::Wanted wanted = machine_.wanted(clock_.now());
  if (machine_.done()) return absl::ZeroDuration();
  if (wanted.beat) {
    const std::string key = beat_key(wanted.beat->id);
    GRADWIRE_RETURN_IF_ERROR(wanted.beat->value ? store_->try_set(key, *wanted.beat->value, kCall)
                                                : store_->try_delete_key(key, kCall).status());
    failing_since_.reset();
    machine_.beaten(clock_.now());
  } else if (!wanted.look_at.empty()) {
    GRADWIRE_RETURN_IF_ERROR(look(wanted.look_at));
  } else if (wanted.change) {
    GRADWIRE_RETURN_IF_ERROR(change(*wanted.change));
  } else {
    // A slice may be long for what is due soon, and time may be a test's.
    const absl::Duration timeout = std::clamp(wanted.wake - clock_.now(), absl::ZeroDuration(), kSlice);
    // A node of its own changes the record alone, and need not watch it: the launcher's word comes at once.
    // Should another come, the next change says so.
    if (ended() || alone_) return std::max(timeout, absl::Milliseconds(1));
    GRADWIRE_RETURN_IF_ERROR(watch(timeout));
  }
  return absl::ZeroDuration();
}

// In one pass: who is watched is few, however many nodes there are.
absl::Status StoreDriver::look(const std::vector<std::string>& ids) {
  std::vector<std::optional<std::string>> beats;
  for (const std::string& id : ids) {
    if (interrupted_()) return absl::CancelledError("stopped");
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<std::string> beat, read_now(beat_key(id)));
    beats.push_back(std::move(beat));
  }
  machine_.looked(beats, clock_.now());
  return absl::OkStatus();
}

absl::Status StoreDriver::change(const Rendezvous::Wanted::Change& change) {
  GRADWIRE_ASSIGN_OR_RETURN(std::string now_there,
                            store_->try_compare_set(kStateKey, change.expected, change.desired, kCall));
  if (now_there == change.expected) {
    // Nothing has changed it, and yet it did not take effect: so it is missing.
    known_ = false;
    return absl::OkStatus();
  }
  take_in(std::move(now_there));
  return absl::OkStatus();
}

absl::Status StoreDriver::watch(absl::Duration timeout) {
  const absl::Time began = clock_.now();
  absl::StatusOr<std::string> bytes = store_->try_watch(kStateKey, bytes_.value_or(""), timeout);
  // The end of the slice; or no answer, and much later.
  if (absl::IsDeadlineExceeded(bytes.status()) && clock_.now() - began < timeout + kCall)
    return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(bytes.status());
  take_in(*std::move(bytes));
  return absl::OkStatus();
}

// A get cannot tell a missing key from a store that is slow to answer; a compare_set that changes nothing
// can.
absl::StatusOr<std::optional<std::string>> StoreDriver::read_now(const std::string& key) {
  absl::StatusOr<std::string> value = store_->try_compare_set(key, kNothing, kNothing, kCall);
  GRADWIRE_RETURN_IF_ERROR(value.status());
  failing_since_.reset();
  if (*value == kNothing) return std::nullopt;
  return *std::move(value);
}

void StoreDriver::take_in(std::optional<std::string> bytes) {
  failing_since_.reset();
  known_ = true;
  bytes_ = std::move(bytes);
  machine_.read(bytes_ ? std::optional<absl::string_view>(*bytes_) : std::nullopt, clock_.now());
}

void StoreDriver::on_error(const absl::Status& status, absl::Time began) {
  known_ = false;
  const absl::Time now = clock_.now();
  if (!failing_since_) failing_since_ = std::max(began, now - kLongestCall);
  if (ended() || !may_pass(status)) {
    machine_.lose_store(with_context(status, "the job's store is lost"));
  } else if (now - *failing_since_ >= store_timeout_) {
    machine_.lose_store(
        absl::UnavailableError(absl::StrCat("the job's store is lost: it could not be reached for ",
                                            absl::FormatDuration(store_timeout_), ": ", status.message())));
  }
}

}  // namespace gradwire::rendezvous
