#include "autograd/statistics.h"

#include "autograd/engine.h"
#include "base/error.h"

namespace gradwire::autograd {

AutogradStatistics statistics(const rpc::Agent& agent) {
  Contexts& contexts = value_or_throw(Engine::of(agent))->contexts();
  return {contexts.size(), contexts.cleanups_under_way(), contexts.late_messages()};
}

}  // namespace gradwire::autograd
