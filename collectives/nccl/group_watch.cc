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

// Between looks at the device while something is under way, and at the store.
constexpr absl::Duration kDeviceInterval = absl::Milliseconds(5);
constexpr absl::Duration kStoreInterval = absl::Milliseconds(250);
// Between looks when nothing is under way.
constexpr absl::Duration kIdleInterval = absl::Seconds(1);
// How long a write for the others may take.
constexpr absl::Duration kTellTimeout = absl::Seconds(1);
// A device is not asked about more that has not ended than this: most of it is queued behind the first.
constexpr int kMostOpenAsked = 16;
constexpr std::size_t kMostReason = 4096;

std::string to_text(const absl::Status& status, int rank) {
  return absl::StrCat(static_cast<int>(status.code()), " rank ", rank, ": ",
                      status.message().substr(0, kMostReason));
}

absl::Status from_text(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code) || code <= 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::AbortedError("a rank has given up, and what it wrote of the reason is malformed");
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

void GroupWatch::fail_with(const absl::Status& reason, bool tell) {
  std::deque<Entry> entries;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = reason;
    entries.swap(entries_);
  }
  // Before the communicators end, which lets kernels return with nothing done.
  for (const Entry& entry : entries) {
    if (!entry.work->done()) entry.work->fail(reason);
  }
  if (options_.abort != nullptr) options_.abort(reason);
  if (tell) {
    (void)options_.store->try_compare_set("failed", "", to_text(reason, options_.ranks[options_.rank]),
                                          kTellTimeout);
  }
}

void GroupWatch::leave() {
  uint64_t begun = 0;
  {
    MutexLock lock(mutex_);
    if (std::exchange(left_, true)) return;
    begun = begun_;
  }
  (void)options_.store->try_set(absl::StrCat("left/", options_.rank), absl::StrCat(begun), kTellTimeout);
}

absl::Duration GroupWatch::look() {
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
  int asked_in_vain = 0;
  std::erase_if(open, [&](const Entry& entry) {
    if (asked_in_vain == kMostOpenAsked && entry.deadline > now) return false;
    if (!entry.work->done()) {
      ++asked_in_vain;
      return false;
    }
    ended.push_back(entry.work.get());
    return true;
  });
  // Entries that have ended are destroyed without the lock.
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
  absl::Status status = look_at_work(open, now);
  if (status.ok() && options_.check != nullptr) status = options_.check();
  if (!status.ok()) {
    fail(status);
    return kIdleInterval;
  }
  if (!used) {
    introduce();
  } else if (now >= next_store_look_) {
    next_store_look_ = now + (open.empty() ? kIdleInterval : kStoreInterval);
    status = look_at_store(open);
    if (!status.ok()) fail_with(status, /*tell=*/false);
  }
  return open.empty() ? kIdleInterval : kDeviceInterval;
}

std::string GroupWatch::describe(const Entry& entry) const {
  return absl::StrCat(entry.what,
                      entry.number == 0 ? "" : absl::StrCat(" (collective number ", entry.number, ")"),
                      " of group \"", options_.group, "\", ranks ", absl::StrJoin(options_.ranks, ", "));
}

absl::Status GroupWatch::look_at_work(const std::vector<Entry>& open, absl::Time now) {
  for (const Entry& entry : open) {
    if (now >= entry.deadline) return expired(entry);
  }
  // Asked of the system as seldom as the store.
  return open.empty() || now < next_store_look_ ? absl::OkStatus() : look_who_is_gone(open);
}

absl::Status GroupWatch::look_who_is_gone(const std::vector<Entry>& open) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    const std::optional<ProcessIdentity>& process = processes_[rank];
    if (static_cast<int>(rank) == options_.rank || !process.has_value() || !has_ended(*process)) continue;
    const auto needs = [&](const Entry& entry) {
      return entry.peer < 0 || entry.peer == static_cast<int>(rank);
    };
    const auto entry = std::find_if(open.begin(), open.end(), needs);
    // One that has left first may have ended rightly; what it owes is seen by its number.
    if (entry == open.end() ||
        options_.store->try_get(absl::StrCat("left/", rank), absl::ZeroDuration()).ok()) {
      continue;
    }
    return absl::UnavailableError(absl::StrCat("rank ", options_.ranks[rank], " is gone, its process (",
                                               process->id, ") has ended; under way was ", describe(*entry)));
  }
  return absl::OkStatus();
}

void GroupWatch::introduce() {
  if (introduced_) return;
  introduced_ =
      options_.store->try_set(absl::StrCat("process/", options_.rank), encode(options_.process), kTellTimeout)
          .ok();
}

void GroupWatch::look_for_processes() {
  store::Store& store = *options_.store;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].has_value()) continue;
    const absl::StatusOr<std::string> text =
        store.try_get(absl::StrCat("process/", rank), absl::ZeroDuration());
    // Nothing is known of a process whose record is malformed.
    if (text.ok()) processes_[rank] = decode_process(*text).value_or(ProcessIdentity());
  }
}

absl::Status GroupWatch::look_at_store(const std::vector<Entry>& open) {
  store::Store& store = *options_.store;
  const absl::StatusOr<std::string> failed = store.try_get("failed", absl::ZeroDuration());
  if (failed.ok()) return from_text(*failed);
  // A store that is gone ends no group: the communicators need it no more.
  if (failed.status().code() != absl::StatusCode::kDeadlineExceeded) return absl::OkStatus();
  introduce();
  look_for_processes();
  uint64_t begun = 0;
  {
    MutexLock lock(mutex_);
    begun = begun_;
  }
  if (begun != published_ &&
      store.try_set(absl::StrCat("progress/", options_.rank), absl::StrCat(begun), kTellTimeout).ok()) {
    published_ = begun;
  }
  return open.empty() ? absl::OkStatus() : look_who_left(open);
}

absl::Status GroupWatch::look_who_left(const std::vector<Entry>& open) {
  store::Store& store = *options_.store;
  const absl::StatusOr<int64_t> left = store.try_num_keys_under("left/", absl::ZeroDuration());
  if (!left.ok() || *left == 0) return absl::OkStatus();
  for (std::size_t rank = 0; rank < options_.ranks.size(); ++rank) {
    const absl::StatusOr<std::string> text = store.try_get(absl::StrCat("left/", rank), absl::ZeroDuration());
    uint64_t count = 0;
    if (!text.ok() || !absl::SimpleAtoi(*text, &count)) continue;
    for (const Entry& entry : open) {
      const bool never = entry.number > count || entry.peer == static_cast<int>(rank);
      if (!never || entry.work->done()) continue;
      return absl::UnavailableError(absl::StrCat("rank ", options_.ranks[rank], " has left after ", count,
                                                 " collectives; it will not take part in ", describe(entry)));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupWatch::expired(const Entry& entry) {
  const std::string what = absl::StrCat(describe(entry), ": did not end within its time");
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
  if (late.empty()) return absl::DeadlineExceededError(absl::StrCat(what, "; all ranks had begun it"));
  return absl::DeadlineExceededError(absl::StrCat(what, "; ", name_ranks(late), " did not arrive"));
}

}  // namespace gradwire::collectives::nccl
