#include "gradwire/autograd/context/active_context.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "gradwire/base/threads/execution_state.h"

namespace gradwire::autograd {

thread_local uint64_t ActiveContextSlot::entered_at_ = 0;

void ActiveContextSlot::set(Value value) {
  // If the frame does not change, the thread continues its current stretch.
  if (value == value_) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const uint64_t now = at::sequence_number::peek();
  if (value_ != nullptr && now == entered_at_) value_->timeline().leave_unused(*value_->frame(), thread, now);
  // The previous value is destroyed when this function returns.
  value_.swap(value);
  entered_at_ = now;
  if (value_ != nullptr) value_->timeline().enter(value_->frame(), thread, now);
}

const bool ActiveContextSlot::registered_ = [] {
  register_execution_slot({[] { return ExecutionState::Value(value_); },
                           [](const ExecutionState::Value& value) {
                             if (value_ != value) set(std::static_pointer_cast<const ActiveContext>(value));
                           }});
  return true;
}();

}  // namespace gradwire::autograd
