#include "gradwire/base/copy/adaptive_copy.h"

#include <cstring>

#include "gradwire/base/monotonic_time.h"

namespace gradwire {
namespace {

// The clock and the lock cost more than smaller copies.
constexpr std::size_t kMinBytes = std::size_t{4} << 10;

CopyChoice first_choice() {
  return CopyChoice({true, is_supported(CopyMethod::kString), is_supported(CopyMethod::kStream)});
}

}  // namespace

AdaptiveCopy::AdaptiveCopy() : choices_{first_choice(), first_choice(), first_choice(), first_choice()} {}

void AdaptiveCopy::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes < kMinBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t size = size_class(bytes);
  CopyMethod method;
  {
    MutexLock lock(mutex_);
    method = choices_[size].next();
  }
  const int64_t begin = monotonic_nanoseconds();
  copy_with(method, to, from, bytes);
  const auto took = static_cast<double>(monotonic_nanoseconds() - begin);
  MutexLock lock(mutex_);
  choices_[size].record(method, took * 1024 / static_cast<double>(bytes));
}

std::size_t AdaptiveCopy::size_class(std::size_t bytes) {
  constexpr std::size_t kKib = 1024;
  return bytes < 64 * kKib ? 0 : bytes < 512 * kKib ? 1 : bytes < 4096 * kKib ? 2 : 3;
}

}  // namespace gradwire
