#include "gradwire/rpc/flight/call_parent.h"

#include <utility>

namespace gradwire::rpc {
namespace {

thread_local const CallParent* innermost = nullptr;

}  // namespace

CallParent current_parent() {
  if (innermost != nullptr && *innermost) return *innermost;
  const auto& serving = ExecutionSlot<CallContext>::get();
  return serving == nullptr ? CallParent() : CallParent::call(serving->identity());
}

ParentScope::ParentScope(const CallParent& parent)
    : parent_(parent), outer_(std::exchange(innermost, &parent_)) {}

ParentScope::~ParentScope() { innermost = outer_; }

}  // namespace gradwire::rpc
