#include "gradwire/autograd/statistics.h"

#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"

namespace gradwire::autograd {

AutogradStatistics statistics(const rpc::Agent& agent) {
  Engine& engine = *value_or_throw(Engine::of(agent));
  Contexts& contexts = engine.contexts();
  AutogradStatistics statistics;
  statistics.contexts = contexts.size();
  statistics.cleanups_under_way = contexts.cleanups_under_way();
  statistics.late_messages = contexts.late_messages();
  statistics.released_contexts = contexts.remembered();
  statistics.context_origins = contexts.origins();
  for (const auto& context : contexts.all()) {
    MutexLock lock(context->mutex);
    statistics.passes += context->passes.size();
  }
  statistics.refused_cleanups = contexts.refused_cleanups();
  statistics.unjoined_gradients = contexts.unjoined_gradients();
  statistics.waiting_for_steps = engine.barrier().waiting();
  return statistics;
}

}  // namespace gradwire::autograd
