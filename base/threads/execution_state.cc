#include "gradwire/base/threads/execution_state.h"

#include <cstdlib>

namespace gradwire {
namespace {

struct SlotTable {
  std::array<ExecutionSlotHooks, ExecutionState::kMaxSlots> hooks;
  std::size_t size = 0;
};

// Constant-initialised, so that registrations in other translation units can use it during static
// initialisation.
constinit SlotTable slots{};

}  // namespace

void register_execution_slot(ExecutionSlotHooks hooks) {
  if (slots.size == ExecutionState::kMaxSlots)
    std::abort();  // More than kMaxSlots slots are a programming error.
  slots.hooks[slots.size++] = hooks;
}

ExecutionState ExecutionState::capture() {
  ExecutionState state;
  for (std::size_t i = 0; i < slots.size; ++i) state.values_[i] = slots.hooks[i].capture();
  return state;
}

void ExecutionState::restore() const {
  for (std::size_t i = 0; i < slots.size; ++i) {
    Value value = values_[i];
    slots.hooks[i].exchange(value);
  }
}

void ExecutionState::clear() {
  for (std::size_t i = 0; i < slots.size; ++i) {
    Value none;
    slots.hooks[i].exchange(none);
  }
}

void ExecutionState::exchange() {
  for (std::size_t i = 0; i < slots.size; ++i) slots.hooks[i].exchange(values_[i]);
}

}  // namespace gradwire
