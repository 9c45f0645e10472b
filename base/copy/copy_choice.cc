#include "gradwire/base/copy/copy_choice.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gradwire {
namespace {

// Number of costs of a method before it is chosen or rejected. The first one may contain page faults.
constexpr std::size_t kDecisiveCosts = 3;
static_assert(kDecisiveCosts <= RecentCosts::kKept);
constexpr int kMinTrialInterval = 32;
constexpr int kMaxTrialInterval = 2048;
// The best method has become slow if its cost exceeds its usual cost by this factor.
constexpr double kSlow = 1.5;

}  // namespace

CopyChoice::CopyChoice(const Options& options)
    : copies_per_timed_(options.copies_per_timed), trial_interval_(kMinTrialInterval) {
  for (std::size_t i = 0; i < kCopyMethods; ++i) methods_[i].usable = options.usable[i];
  at(CopyMethod::kMemcpy).usable = true;
  for (const Method& method : methods_) others_ += method.usable ? 1 : 0;
}

CopyOrder CopyChoice::next() {
  // There is nothing to choose, so nothing is measured.
  if (others_ == 0) return {};
  // 1. Measure all methods in turn, so that page faults of the first copies count the same for all.
  if (!all_known_) return {least_known().value_or(best_), true};
  // 2. Use the method on trial once more when the cost of the last time is known.
  if (!trial_.has_value() && (due_trials_ > 0 || since_trial_ >= trial_interval_)) begin_trial();
  if (trial_.has_value() && !ordered_) {
    ordered_ = true;
    return {*trial_, true};
  }
  // 3. Use the best method.
  ++since_trial_;
  const bool timed = ++since_timed_ >= copies_per_timed_;
  if (timed) since_timed_ = 0;
  return {best_, timed};
}

absl::optional<CopyMethod> CopyChoice::least_known() const {
  std::size_t fewest = kDecisiveCosts;
  absl::optional<CopyMethod> result;
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    if (!methods_[i].usable || methods_[i].costs.count() >= fewest) continue;
    fewest = methods_[i].costs.count();
    result = static_cast<CopyMethod>(i);
  }
  return result;
}

void CopyChoice::record(CopyMethod method, double cost) {
  if (!all_known_) {
    record_first(method, cost);
  } else if (method == trial_) {
    record_trial(cost);
  } else if (method == best_) {
    record_best(cost);
  }
}

void CopyChoice::record_first(CopyMethod method, double cost) {
  at(method).costs.add(cost);
  if (least_known().has_value()) return;
  all_known_ = true;
  CopyMethod best = CopyMethod::kMemcpy;
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    if (methods_[i].usable && methods_[i].costs.expected() < at(best).costs.expected()) {
      best = static_cast<CopyMethod>(i);
    }
  }
  choose(best);
}

void CopyChoice::record_best(double cost) {
  at(best_).costs.add(cost);
  const double expected = at(best_).costs.expected();
  if (expected < usual_cost_) {
    usual_cost_ = expected;
  } else if (expected > kSlow * usual_cost_) {
    // The reader may have moved to another core: try the others now.
    usual_cost_ = expected;
    trial_interval_ = kMinTrialInterval;
    due_trials_ = others_;
  }
}

void CopyChoice::begin_trial() {
  since_trial_ = 0;
  due_trials_ = std::max(0, due_trials_ - 1);
  do {
    last_tried_ = (last_tried_ + 1) % kCopyMethods;
  } while (!methods_[last_tried_].usable || static_cast<CopyMethod>(last_tried_) == best_);
  trial_ = static_cast<CopyMethod>(last_tried_);
  // Its old costs may be from another place of the reader.
  at(*trial_).costs.clear();
}

// One copy is enough to end a trial: most methods that are on trial are slow, and a copy with them costs
// time. A method is chosen only after several copies.
void CopyChoice::record_trial(double cost) {
  ordered_ = false;
  const CopyMethod method = *trial_;
  RecentCosts& costs = at(method).costs;
  costs.add(cost);
  if (costs.expected() >= at(best_).costs.expected()) {
    trial_.reset();
    trial_interval_ = std::min(2 * trial_interval_, kMaxTrialInterval);
  } else if (costs.count() >= kDecisiveCosts) {
    choose(method);
  }
}

void CopyChoice::choose(CopyMethod method) {
  best_ = method;
  usual_cost_ = at(method).costs.expected();
  trial_.reset();
  trial_interval_ = kMinTrialInterval;
  since_trial_ = 0;
}

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
