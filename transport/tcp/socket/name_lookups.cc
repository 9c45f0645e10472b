#include "gradwire/transport/tcp/socket/name_lookups.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::transport {

// A host is in `askers` from its first find() until its lookup has ended, and in `queue` until its lookup
// begins.
struct NameLookups::State {
  using Askers = std::vector<std::weak_ptr<Asker>>;

  explicit State(HostLookup given) : look_up(std::move(given)) {}

  // Takes the askers of the host, and calls them.
  void report(const std::string& host, const Result& result) {
    Askers reported;
    {
      MutexLock lock(mutex);
      const auto found = askers.find(host);
      if (found == askers.end()) return;
      reported = std::move(found->second);
      askers.erase(found);
    }
    for (const std::weak_ptr<Asker>& each : reported) {
      if (const std::shared_ptr<Asker> asker = each.lock()) asker->found(host, result);
    }
  }

  const HostLookup look_up;
  Mutex mutex;
  std::deque<std::string> queue ABSL_GUARDED_BY(mutex);
  HashMap<std::string, Askers> askers ABSL_GUARDED_BY(mutex);
  int threads ABSL_GUARDED_BY(mutex) = 0;
};

NameLookups::NameLookups(HostLookup look_up)
    : state_(std::make_shared<State>(look_up ? std::move(look_up) : look_up_host)) {}

NameLookups::~NameLookups() {
  MutexLock lock(state_->mutex);
  state_->queue.clear();
  state_->askers.clear();
}

void NameLookups::find(const std::string& host, std::weak_ptr<Asker> asker) {
  {
    MutexLock lock(state_->mutex);
    const auto [entry, is_new] = state_->askers.try_emplace(host);
    entry->second.push_back(std::move(asker));
    if (!is_new) return;
    state_->queue.push_back(host);
    if (state_->threads == kMostThreads) return;
    ++state_->threads;
  }
  absl::StatusOr<std::thread> thread = start_thread("name-lookup", [state = state_] { run(*state); });
  if (thread.ok()) {
    thread->detach();
    return;
  }
  {
    MutexLock lock(state_->mutex);
    // Another thread comes to this host later.
    if (--state_->threads > 0) return;
    std::erase(state_->queue, host);
  }
  state_->report(host, with_context(thread.status(), absl::StrCat("looking up the host \"", host, "\"")));
}

void NameLookups::run(State& state) {
  while (true) {
    std::string host;
    {
      MutexLock lock(state.mutex);
      if (state.queue.empty()) {
        --state.threads;
        return;
      }
      host = std::move(state.queue.front());
      state.queue.pop_front();
      const auto found = state.askers.find(host);
      if (std::all_of(found->second.begin(), found->second.end(),
                      [](const std::weak_ptr<Asker>& each) { return each.expired(); })) {
        state.askers.erase(found);
        continue;
      }
    }
    state.report(host, state.look_up(host));
  }
}

}  // namespace gradwire::transport
