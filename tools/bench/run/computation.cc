#include "gradwire/tools/bench/run/computation.h"

#include <atomic>

#include "gradwire/tools/bench/run/clocks.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kFloats = (128 << 10) / sizeof(float);
// The values between two checks of the time. They take a few microseconds.
constexpr std::size_t kBlock = kFloats / 2;

}  // namespace

Computation::Computation() : values_(kFloats, 1.0F) {}

int64_t Computation::run(int64_t microseconds) {
  const int64_t start = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  const int64_t until = start + microseconds * 1000;
  int64_t now = start;
  for (std::size_t first = 0; now < until; first = (first + kBlock) % kFloats) {
    float* block = values_.data() + first;
    // The values stay between 1 and 2.
    for (std::size_t i = 0; i < kBlock; ++i) block[i] = block[i] * 0.5F + 0.75F;
    // Make the compiler store the values, although nothing reads them.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    now = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  }
  return now - start;
}

}  // namespace gradwire::bench
