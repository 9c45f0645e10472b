#include "gradwire/tools/launch/arrivals/arrival_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"

namespace gradwire::tools {
namespace {

constexpr std::size_t kMostNamed = 16;

std::string name_of(const ArrivalWatch::Worker& worker) {
  return absl::StrCat("rank ", worker.rank, " (local rank ", worker.local_rank, ", pid ", worker.pid, ")");
}

}  // namespace

ArrivalWatch::ArrivalWatch(Options options)
    : options_(std::move(options)), progress_(options_.progress), thread_([this] { run(); }) {}

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
