#include "gradwire/tools/launch/arrivals/arrival_watch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::tools {
namespace {

// The keys of one group, below a prefix "round_R/rendezvous/NAME/NUMBER".
struct Group {
  bool has_size = false;
  bool has_result = false;
  std::vector<int> arrived;
};

// Splits "PREFIX/LAST". Both are empty if there is no slash.
std::pair<absl::string_view, absl::string_view> split_last(absl::string_view key) {
  const std::size_t slash = key.rfind('/');
  if (slash == absl::string_view::npos) return {};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

std::map<std::string, Group> groups_of(const std::vector<std::string>& keys, int world_size) {
  std::map<std::string, Group> groups;
  for (const std::string& key : keys) {
    const auto [prefix, last] = split_last(key);
    if (last == "world_size") {
      groups[std::string(prefix)].has_size = true;
    } else if (last == "result") {
      groups[std::string(prefix)].has_result = true;
    } else if (const auto [group, kind] = split_last(prefix); kind == "waiting") {
      int rank = -1;
      const bool valid = absl::SimpleAtoi(last, &rank) && rank >= 0 && rank < world_size;
      if (valid) groups[std::string(group)].arrived.push_back(rank);
    }
  }
  return groups;
}

}  // namespace

absl::StatusOr<Meeting> read_meeting(store::Store& store, int64_t round, int world_size,
                                     absl::Duration timeout) {
  Clock& clock = Clock::system();
  const absl::Time deadline = clock.now() + timeout;
  const auto left = [&] { return std::max(deadline - clock.now(), absl::ZeroDuration()); };
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                            store.try_list_keys_under(absl::StrCat("round_", round, "/rendezvous/"), left()));
  Meeting meeting;
  for (auto& [prefix, group] : groups_of(keys, world_size)) {
    if (!group.has_size || (group.arrived.empty() && !group.has_result)) continue;
    if (left() <= absl::ZeroDuration()) return absl::DeadlineExceededError("the store is slow");
    const absl::StatusOr<std::string> size = store.try_get(prefix + "/world_size", left());
    int number = 0;
    // The key of a group that has just ended may be gone.
    if (!size.ok() && !store::is_wait_timeout(size.status())) return size.status();
    if (!size.ok() || !absl::SimpleAtoi(*size, &number) || number != world_size) continue;
    if (group.has_result) return Meeting{.state = Meeting::State::kOver};
    if (group.arrived.size() <= meeting.arrived.size()) continue;
    meeting.state = Meeting::State::kGoingOn;
    meeting.arrived = std::move(group.arrived);
  }
  std::sort(meeting.arrived.begin(), meeting.arrived.end());
  return meeting;
}

namespace {

constexpr std::size_t kMostNamed = 16;

std::string name_of(const ArrivalWatch::Worker& worker) {
  return absl::StrCat("rank ", worker.rank, " (local rank ", worker.local_rank, ", pid ", worker.pid, ")");
}

}  // namespace

ArrivalWatch::ArrivalWatch(Options options)
    : options_(std::move(options)),
      progress_(options_.progress),
      thread_(value_or_throw(start_thread("arrivals", [this] { run(); }))) {}

ArrivalWatch::~ArrivalWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void ArrivalWatch::show() {
  progress_.update([this] { return state(); });
}

absl::Duration ArrivalWatch::until_next() const {
  {
    MutexLock lock(mutex_);
    if (meeting_.state == Meeting::State::kOver) return absl::InfiniteDuration();
  }
  return progress_.until_next();
}

void ArrivalWatch::run() {
  Clock& clock = Clock::system();
  std::shared_ptr<store::Store> store;
  absl::Duration pause = options_.first;
  while (true) {
    {
      const absl::Time next = clock.now() + pause;
      MutexLock lock(mutex_);
      while (!stopping_ && clock.now() < next) changed_.wait_for(mutex_, next - clock.now());
      if (stopping_) return;
    }
    if (!ask(store)) return;
    MutexLock lock(mutex_);
    const bool waits = meeting_.state == Meeting::State::kGoingOn;
    pause = waits ? options_.interval : std::min(std::max(pause * 2, options_.interval), options_.longest);
  }
}

// A store that does not answer is asked again: the workers report it, and the job goes on.
bool ArrivalWatch::ask(std::shared_ptr<store::Store>& store) {
  absl::StatusOr<Meeting> meeting = Meeting();
  if (store == nullptr) {
    absl::StatusOr<std::shared_ptr<store::Store>> opened = options_.open(options_.timeout);
    if (opened.ok()) store = *std::move(opened);
  }
  if (store != nullptr) meeting = read_meeting(*store, options_.round, options_.world_size, options_.timeout);
  if (!meeting.ok()) store = nullptr;
  MutexLock lock(mutex_);
  meeting_ = meeting.ok() ? *std::move(meeting) : Meeting();
  return meeting_.state != Meeting::State::kOver;
}

std::optional<ProgressState> ArrivalWatch::state() const {
  MutexLock lock(mutex_);
  if (meeting_.state != Meeting::State::kGoingOn) return std::nullopt;
  std::vector<std::string> missing;
  for (const Worker& worker : options_.workers) {
    const std::vector<int>& arrived = meeting_.arrived;
    if (!std::binary_search(arrived.begin(), arrived.end(), worker.rank)) missing.push_back(name_of(worker));
  }
  if (missing.empty()) return std::nullopt;
  const auto all = static_cast<int>(options_.workers.size());
  const auto gone = static_cast<int>(missing.size());
  const std::size_t named = std::min(missing.size(), kMostNamed);
  return ProgressState{
      .text = absl::StrCat(
          all - gone, " of ", all, " workers of this node have come to the job's store; waiting for ",
          absl::StrJoin(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
          missing.size() > named ? absl::StrCat(" and ", missing.size() - named, " more") : ""),
      .done = all - gone,
      .total = all};
}

}  // namespace gradwire::tools
