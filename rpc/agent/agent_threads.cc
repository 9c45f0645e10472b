#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent/agent_impl.h"

// How an agent's threads end, the last step of every shutdown. Handlers run on them, and a handler may ignore that its
// call was cancelled: whoever shuts down does not wait for it for ever.
namespace gradwire::rpc {
namespace {

struct Joined {
  Mutex mutex;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace

void AgentImpl::join_threads() {
  // Handlers that run now find every call refused and every wait ended, so the pool drains.
  executor->shutdown();
  timers->shutdown();
  loop->post([loop = loop.get()] { loop->end_in_loop(); });
  loop->run_until([this] { return loop->ended(); });
}

absl::Status AgentImpl::end_threads() {
  std::shared_ptr<Agent> keep = agent.weak_from_this().lock();
  if (keep == nullptr || options.handler_patience == absl::InfiniteDuration()) {
    join_threads();
    return absl::OkStatus();
  }
  auto joined = std::make_shared<Joined>();
  // It keeps the agent, which its handlers need, for as long as they run.
  std::thread joiner([this, keep = std::move(keep), joined] {
    join_threads();
    MutexLock lock(joined->mutex);
    joined->done = true;
    joined->changed.notify_all();
  });
  const absl::Time deadline = Clock::system().now() + options.handler_patience;
  bool done = false;
  {
    MutexLock lock(joined->mutex);
    while (!joined->done && Clock::system().now() < deadline) {
      joined->changed.wait_for(joined->mutex, deadline - Clock::system().now());
    }
    done = joined->done;
  }
  if (done) {
    joiner.join();
    return absl::OkStatus();
  }
  joiner.detach();
  absl::Status left = absl::DeadlineExceededError(absl::StrCat(
      "handlers of worker \"", self.name, "\" still run ", absl::FormatDuration(options.handler_patience),
      " after its shutdown has cancelled their calls, and their threads are left behind: ",
      absl::StrJoin(server->running_callees(), ", "),
      "; let them look at CallContext::current()->cancelled()"));
  log(LogLevel::kError, left.message());
  return left;
}

absl::Status AgentImpl::how_it_ended() {
  MutexLock lock(stop_mutex_);
  return std::exchange(ended_, absl::OkStatus());
}

}  // namespace gradwire::rpc
