#include "gradwire/base/copy/adaptive_copy.h"

#include <array>
#include <cstdint>

#include "gradwire/base/clock.h"
#include "gradwire/base/copy/copy_methods.h"

namespace gradwire {
namespace {

std::array<bool, kCopyMethods> supported_methods() {
  return {true, is_supported(CopyMethod::kString), is_supported(CopyMethod::kStream)};
}

// Returns the time that the copy took.
int64_t timed_copy(CopyMethod method, void* to, const void* from, std::size_t bytes) {
  const int64_t begin = monotonic_nanoseconds();
  copy_with(method, to, from, bytes);
  return monotonic_nanoseconds() - begin;
}

}  // namespace

AdaptiveCopy::AdaptiveCopy() : choice_(supported_methods()) {}

void AdaptiveCopy::copy_chosen(void* to, const void* from, std::size_t bytes) {
  const CopyOrder order = choice_.next(bytes);
  if (order.timed) {
    choice_.record(order.method, bytes, timed_copy(order.method, to, from, bytes));
  } else {
    copy_with(order.method, to, from, bytes);
  }
}

SharedAdaptiveCopy::SharedAdaptiveCopy() : choice_(supported_methods()) {}

void SharedAdaptiveCopy::copy(void* to, const void* from, std::size_t bytes) {
  CopyOrder order;
  if (bytes >= SizedCopyChoice::kMinBytes) {
    MutexLock lock(mutex_);
    order = choice_.next(bytes);
  }
  if (!order.timed) {
    copy_with(order.method, to, from, bytes);
    return;
  }
  const int64_t nanoseconds = timed_copy(order.method, to, from, bytes);
  MutexLock lock(mutex_);
  choice_.record(order.method, bytes, nanoseconds);
}

}  // namespace gradwire
