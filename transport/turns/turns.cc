#include "gradwire/transport/turns/turns.h"

#include <cstddef>
#include <utility>

#include "gradwire/base/log/contained.h"

namespace gradwire::transport {

absl::Time Turns::now() {
  const absl::Time now = clock_.now();
  if (!std::exchange(begun_, true)) begin_ = now;
  return now;
}

bool Turns::run_deferred() {
  std::size_t left = deferred_.size();
  if (left == 0) return false;
  do {
    // Taken out first: the task may defer others.
    Task task = std::move(deferred_.front());
    deferred_.pop_front();
    run_contained("deferred work of the event loop", task);
  } while (--left > 0 && !spent());
  return true;
}

void Turns::clear() {
  // Moved out first: the end of a task may defer others, for example those of a connection that it owned.
  while (!deferred_.empty()) std::exchange(deferred_, {});
}

}  // namespace gradwire::transport
