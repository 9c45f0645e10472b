#include "gradwire/rpc/agent/global_agent.h"

#include "gradwire/base/fork.h"
#include "gradwire/base/mutex.h"

namespace gradwire::rpc {
namespace {

struct Global {
  Mutex mutex;
  std::shared_ptr<Agent> agent ABSL_GUARDED_BY(mutex);
};

Global& global() {
  static constinit PerProcess<Global> instance;
  return instance.get();
}

}  // namespace

std::shared_ptr<Agent> global_agent() {
  MutexLock lock(global().mutex);
  return global().agent;
}

void set_global_agent(std::shared_ptr<Agent> agent) {
  // The swap moves the old agent into the parameter, which is destroyed after the lock is released. The
  // agent's destructor joins threads.
  MutexLock lock(global().mutex);
  global().agent.swap(agent);
}

void clear_global_agent(const std::shared_ptr<Agent>& agent) {
  // The last owner is often `old`, so it is destroyed after the lock is released.
  std::shared_ptr<Agent> old;
  MutexLock lock(global().mutex);
  if (global().agent == agent) old.swap(global().agent);
}

}  // namespace gradwire::rpc
