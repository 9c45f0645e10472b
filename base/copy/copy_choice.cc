#include "gradwire/base/copy/copy_choice.h"

#include <algorithm>

namespace gradwire {
namespace {

// Number of first copies with each method. The first one may touch new pages.
constexpr int kFirstSamples = 2;
constexpr int kMinTrialInterval = 32;
constexpr int kMaxTrialInterval = 2048;
// The best method has become slow if its cost exceeds its usual cost by this factor.
constexpr double kSlow = 1.5;
// The weight of a new sample.
constexpr double kWeight = 0.25;

}  // namespace

CopyChoice::CopyChoice(const std::array<bool, kCopyMethods>& usable) : trial_interval_(kMinTrialInterval) {
  for (std::size_t i = 0; i < kCopyMethods; ++i) known_[i].usable = usable[i];
  at(CopyMethod::kMemcpy).usable = true;
}

CopyMethod CopyChoice::next() {
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    if (known_[i].usable && known_[i].samples < kFirstSamples) return static_cast<CopyMethod>(i);
  }
  if (++since_trial_ < trial_interval_) return best_;
  since_trial_ = 0;
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    last_tried_ = (last_tried_ + 1) % kCopyMethods;
    if (known_[last_tried_].usable && static_cast<CopyMethod>(last_tried_) != best_) break;
  }
  return known_[last_tried_].usable ? static_cast<CopyMethod>(last_tried_) : best_;
}

// A first sample may contain page faults, so it is replaced and not averaged. A trial after a long time says
// more than an old average: it counts half, and alone if it was faster than the best method.
void CopyChoice::record(CopyMethod method, double nanoseconds_per_kib) {
  Known& known = at(method);
  double weight = method == best_ ? kWeight : 0.5;
  if (known.samples < kFirstSamples || (method != best_ && nanoseconds_per_kib < at(best_).cost)) weight = 1;
  known.cost += weight * (nanoseconds_per_kib - known.cost);
  ++known.samples;
  const CopyMethod before = best_;
  choose_best();
  if (best_ != before) {
    trial_interval_ = kMinTrialInterval;
    usual_cost_ = at(best_).cost;
  } else if (method != best_) {
    trial_interval_ = std::min(2 * trial_interval_, kMaxTrialInterval);
  } else if (usual_cost_ == 0 || known.cost < usual_cost_) {
    usual_cost_ = known.cost;
  } else if (known.cost > kSlow * usual_cost_) {
    // The reader may have moved to another core: try the others now.
    usual_cost_ = known.cost;
    trial_interval_ = kMinTrialInterval;
    since_trial_ = kMinTrialInterval;
  }
}

void CopyChoice::choose_best() {
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    if (known_[i].samples >= kFirstSamples && known_[i].cost < at(best_).cost)
      best_ = static_cast<CopyMethod>(i);
  }
}

}  // namespace gradwire
