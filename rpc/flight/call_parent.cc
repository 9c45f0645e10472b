#include "gradwire/rpc/flight/call_parent.h"

#include <utility>

#include "gradwire/rpc/trace/trace_context.h"

namespace gradwire::rpc {
namespace {

thread_local const CallParent* innermost = nullptr;

}  // namespace

CallParent current_parent() {
  if (innermost != nullptr && *innermost) return *innermost;
  const auto& serving = ExecutionSlot<CallContext>::get();
  if (serving != nullptr) return CallParent::call(serving->identity());
  const auto& trace = ExecutionSlot<TraceContext>::get();
  return trace == nullptr ? CallParent() : CallParent::trace(trace->trace_high, trace->trace_low);
}

ParentScope::ParentScope(const CallParent& parent)
    : parent_(parent), outer_(std::exchange(innermost, &parent_)) {}

ParentScope::~ParentScope() { innermost = outer_; }

}  // namespace gradwire::rpc
