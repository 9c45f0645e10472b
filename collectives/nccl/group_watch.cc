// Health checks of one NCCL group. poll() runs on the watchdog's thread, and begin(), add() and leave() on
// the threads of operations. A failure found by any of them goes through fail_with() once.

#include "gradwire/collectives/nccl/group_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/agreement.h"

namespace gradwire::collectives::nccl {
namespace {

// While operations are under way: the interval between polls of the device, and of the store.
constexpr absl::Duration kDeviceInterval = absl::Milliseconds(5);
constexpr absl::Duration kStoreInterval = absl::Milliseconds(250);
// The interval between polls when no operation is under way.
constexpr absl::Duration kIdleInterval = absl::Seconds(1);
// The limit for a write to the store.
constexpr absl::Duration kWriteTimeout = absl::Seconds(1);
// A poll stops asking the device after this number of operations that have not ended: most others are queued
// behind them.
constexpr int kMostOpenAsked = 16;
constexpr std::size_t kMostReason = 4096;

std::string to_text(const absl::Status& status, int rank) {
  return absl::StrCat(static_cast<int>(status.code()), " rank ", rank, ": ",
                      status.message().substr(0, kMostReason));
}

// The text comes from another process: a malformed one still means that a rank has failed.
absl::Status from_text(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code) || code <= 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::AbortedError("a rank has failed, and the reason that it wrote to the store is malformed");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second.substr(0, kMostReason + 32));
}

}  // namespace

GroupWatch::GroupWatch(Options options) : options_(std::move(options)), processes_(options_.ranks.size()) {}

uint64_t GroupWatch::begin() {
  MutexLock lock(mutex_);
  used_ = true;
  return ++begun_;
}

// Either fail_with() finds the entry in entries_, or this function finds failure_: both use the lock. So no
// operation is left without its error. Only the first entry wakes the watchdog: with entries under way it
// polls at short intervals anyway.
void GroupWatch::add(Entry entry) {
  absl::Status failed;
  bool first = false;
  {
    MutexLock lock(mutex_);
    failed = failure_;
    used_ = true;
    if (failed.ok()) {
      first = entries_.empty();
      entries_.push_back(entry);
    }
  }
  if (!failed.ok()) {
    entry.work->fail(failure());
  } else if (first && options_.wake != nullptr) {
    options_.wake();
  }
}

absl::Status GroupWatch::failure() const {
  MutexLock lock(mutex_);
  if (failure_.ok()) return failure_;
  return absl::AbortedError(
      absl::StrCat("the group \"", options_.group, "\" is broken: ", failure_.message()));
}

void GroupWatch::fail_with(const absl::Status& reason, bool notify) {
  std::deque<Entry> entries;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = reason;
    entries.swap(entries_);
  }
  // Fail the work before the communicators end: ending them makes kernels return without a result, and their
  // events would then report success.
  for (const Entry& entry : entries) {
    // done() keeps the success of an operation that ended before the failure.
    if (!entry.work->done()) entry.work->fail(reason);
  }
  if (options_.abort != nullptr) options_.abort(reason);
  if (notify) {
    // The first reason of all ranks stays: later ones are mostly consequences. This comes last, because the
    // store may be slow or gone.
    (void)options_.store->try_compare_set("failed", "", to_text(reason, options_.ranks[options_.rank]),
                                          kWriteTimeout);
  }
}

void GroupWatch::leave() {
  uint64_t begun = 0;
  {
    MutexLock lock(mutex_);
    if (std::exchange(left_, true)) return;
    begun = begun_;
  }
  (void)options_.store->try_set(absl::StrCat("left/", options_.rank), absl::StrCat(begun), kWriteTimeout);
}

//   1. Under the lock, copy the entries.
//   2. Without the lock, ask the devices which operations have ended.
//   3. Under the lock, remove the entries that have ended; destroy them without the lock.
//   4. Check deadlines, processes and communicators.
//   5. At the store's interval, check the store.
absl::Duration GroupWatch::poll() {
  std::vector<Entry> open;
  bool used = false;
  {
    MutexLock lock(mutex_);
    used = used_;
    if (left_ || !failure_.ok()) return kIdleInterval;
    open.assign(entries_.begin(), entries_.end());
  }
  const absl::Time now = options_.clock->now();
  std::vector<WatchedWork*> ended;
  // A device that has failed: the other ranks would wait for this one.
  absl::Status lost;
  int still_open = 0;
  std::erase_if(open, [&](const Entry& entry) {
    // An entry whose deadline has passed is always asked: it fails the group below, if it has not ended.
    if (still_open == kMostOpenAsked && entry.deadline > now) return false;
    if (!entry.work->done()) {
      ++still_open;
      return false;
    }
    ended.push_back(entry.work.get());
    if (lost.ok()) {
      lost = entry.work->device_error();
      if (!lost.ok()) lost = with_context(lost, describe(entry));
    }
    return true;
  });
  // Holds the entries that have ended until the lock has been released.
  std::vector<Entry> dropped;
  {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < entries_.size() && !ended.empty();) {
      if (std::find(ended.begin(), ended.end(), entries_[i].work.get()) == ended.end()) {
        ++i;
        continue;
      }
      dropped.push_back(std::move(entries_[i]));
      entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  absl::Status status = lost;
  if (status.ok()) status = check_work(open, now);
  if (status.ok() && options_.check != nullptr) status = options_.check();
  if (!status.ok()) {
    fail(status);
    return kIdleInterval;
  }
  // A group that was never used only publishes its process, so that others recognise its end.
  if (!used) {
    publish_process();
  } else if (now >= next_store_check_) {
    next_store_check_ = now + (open.empty() ? kIdleInterval : kStoreInterval);
    status = check_store(open);
    // The failure came from the store, or every member finds it there: do not write it again.
    if (!status.ok()) fail_with(status, /*notify=*/false);
  }
  return open.empty() ? kIdleInterval : kDeviceInterval;
}

std::string GroupWatch::describe(const Entry& entry) const {
  return absl::StrCat(entry.what,
                      entry.number == 0 ? "" : absl::StrCat(" (collective number ", entry.number, ")"),
                      " of group \"", options_.group, "\", ranks ", absl::StrJoin(options_.ranks, ", "));
}

absl::Status GroupWatch::check_work(const std::vector<Entry>& open, absl::Time now) {
  for (const Entry& entry : open) {
    if (now >= entry.deadline) return expired(entry);
  }
  // Check processes as seldom as the store: each check is a system call.
  return open.empty() || now < next_store_check_ ? absl::OkStatus() : check_processes(open);
}

absl::Status GroupWatch::check_processes(const std::vector<Entry>& open) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    const std::optional<ProcessIdentity>& process = processes_[rank];
    if (static_cast<int>(rank) == options_.rank || !process.has_value() || !has_ended(*process)) continue;
    const auto needs = [&](const Entry& entry) {
      return entry.peer < 0 || entry.peer == static_cast<int>(rank);
    };
    const auto entry = std::find_if(open.begin(), open.end(), needs);
    // A rank that left before its process ended may have taken part in all operations under way.
    // check_departures() decides that by the number of collectives that it had begun.
    if (entry == open.end() ||
        options_.store->try_get(absl::StrCat("left/", rank), absl::ZeroDuration()).ok()) {
      continue;
    }
    return absl::UnavailableError(absl::StrCat("rank ", options_.ranks[rank], " is lost: its process (",
                                               process->id, ") has ended during ", describe(*entry)));
  }
  return absl::OkStatus();
}

void GroupWatch::publish_process() {
  if (process_published_) return;
  process_published_ =
      options_.store
          ->try_set(absl::StrCat("process/", options_.rank), encode(options_.process), kWriteTimeout)
          .ok();
}

void GroupWatch::read_processes() {
  store::Store& store = *options_.store;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].has_value()) continue;
    const absl::StatusOr<std::string> text =
        store.try_get(absl::StrCat("process/", rank), absl::ZeroDuration());
    // A malformed record becomes an unknown process, which has_ended() never reports as ended.
    if (text.ok()) processes_[rank] = decode_process(*text).value_or(ProcessIdentity());
  }
}

absl::Status GroupWatch::check_store(const std::vector<Entry>& open) {
  store::Store& store = *options_.store;
  const absl::StatusOr<std::string> failed = store.try_get("failed", absl::ZeroDuration());
  if (failed.ok()) return from_text(*failed);
  // If the store cannot be reached, the group continues: its communicators no longer need the store.
  if (failed.status().code() != absl::StatusCode::kDeadlineExceeded) return absl::OkStatus();
  publish_process();
  read_processes();
  uint64_t begun = 0;
  {
    MutexLock lock(mutex_);
    begun = begun_;
  }
  if (begun != published_ &&
      store.try_set(absl::StrCat("progress/", options_.rank), absl::StrCat(begun), kWriteTimeout).ok()) {
    published_ = begun;
  }
  return open.empty() ? absl::OkStatus() : check_departures(open);
}

absl::Status GroupWatch::check_departures(const std::vector<Entry>& open) {
  store::Store& store = *options_.store;
  const absl::StatusOr<int64_t> left = store.try_num_keys_under("left/", absl::ZeroDuration());
  if (!left.ok() || *left == 0) return absl::OkStatus();
  for (std::size_t rank = 0; rank < options_.ranks.size(); ++rank) {
    const absl::StatusOr<std::string> text = store.try_get(absl::StrCat("left/", rank), absl::ZeroDuration());
    uint64_t count = 0;
    if (!text.ok() || !absl::SimpleAtoi(*text, &count)) continue;
    for (const Entry& entry : open) {
      // A collective needs every rank, so it never ends if the rank left before it began that collective. A
      // message needs only its peer.
      const bool never = entry.number > count || entry.peer == static_cast<int>(rank);
      if (!never || entry.work->done()) continue;
      return absl::UnavailableError(absl::StrCat("rank ", options_.ranks[rank], " has left after ", count,
                                                 " collectives; it will not take part in ", describe(entry)));
    }
  }
  return absl::OkStatus();
}

// The progress of the other ranks in the store may be a little old: they write it at the interval of the
// store. A rank whose progress is malformed or cannot be read is not accused.
absl::Status GroupWatch::expired(const Entry& entry) {
  const std::string what = absl::StrCat(describe(entry), ": did not end before its deadline");
  if (entry.peer >= 0) {
    return absl::DeadlineExceededError(
        absl::StrCat(what, "; rank ", options_.ranks[entry.peer], " did not arrive"));
  }
  std::vector<int> late;
  for (std::size_t rank = 0; rank < options_.ranks.size() && entry.number != 0; ++rank) {
    if (static_cast<int>(rank) == options_.rank) continue;
    const absl::StatusOr<std::string> text =
        options_.store->try_get(absl::StrCat("progress/", rank), absl::ZeroDuration());
    uint64_t count = 0;
    const bool unknown = !text.ok() && text.status().code() != absl::StatusCode::kDeadlineExceeded;
    if (unknown || (text.ok() && !absl::SimpleAtoi(*text, &count)) || count >= entry.number) continue;
    late.push_back(options_.ranks[rank]);
  }
  if (late.empty()) return absl::DeadlineExceededError(absl::StrCat(what, "; all ranks have begun it"));
  return absl::DeadlineExceededError(absl::StrCat(what, "; ", name_ranks(late), " did not arrive"));
}

}  // namespace gradwire::collectives::nccl
