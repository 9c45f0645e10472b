#include "gradwire/base/copy/sized_copy_choice.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gradwire {
namespace {

// A reader loses by streaming stores one access to memory, and the difference between reading memory and
// reading a cache. It is not a multiple of the writer's time, which also contains reading the source.
constexpr double kAccessNanoseconds = 500;
constexpr double kReadNanosecondsPerKib = 50;
// A core's own cache has 1 or 2 MiB on the processors that this was measured on.
constexpr std::size_t kCachedBytes = std::size_t{2} << 20;

// To read the clock twice takes about 50 ns, as long as a copy of 2 KiB.
constexpr std::size_t kAlwaysTimedBytes = std::size_t{64} << 10;
constexpr int kCopiesPerTimed = 8;

}  // namespace

std::size_t SizedCopyChoice::class_of(std::size_t bytes) {
  return std::min<std::size_t>(kClasses, std::bit_width(bytes / kMinBytes)) - 1;
}

template <std::size_t... kClass>
SizedCopyChoice::SizedCopyChoice(const std::array<bool, kCopyMethods>& usable, std::index_sequence<kClass...>)
    : choices_{CopyChoice({usable, (kMinBytes << kClass) < kAlwaysTimedBytes ? kCopiesPerTimed : 1})...} {}

SizedCopyChoice::SizedCopyChoice(const std::array<bool, kCopyMethods>& usable)
    : SizedCopyChoice(usable, std::make_index_sequence<kClasses>()) {}

CopyOrder SizedCopyChoice::next(std::size_t bytes) {
  if (bytes < kMinBytes) return {};
  return choices_[class_of(bytes)].next();
}

void SizedCopyChoice::record(CopyMethod method, std::size_t bytes, int64_t nanoseconds) {
  if (bytes < kMinBytes) return;
  auto cost = static_cast<double>(nanoseconds);
  if (method == CopyMethod::kStream && bytes < kCachedBytes) {
    cost += kAccessNanoseconds + kReadNanosecondsPerKib * static_cast<double>(bytes) / 1024;
  }
  choices_[class_of(bytes)].record(method, cost / static_cast<double>(bytes));
}

}  // namespace gradwire
