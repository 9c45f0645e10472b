#include "gradwire/rpc/agent/global_agent.h"

#include "gradwire/base/mutex.h"

namespace gradwire::rpc {
namespace {

struct Global {
  Mutex mutex;
  std::shared_ptr<Agent> agent ABSL_GUARDED_BY(mutex);
};

Global& global() {
  static Global* instance = new Global;
  return *instance;
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

}  // namespace gradwire::rpc
