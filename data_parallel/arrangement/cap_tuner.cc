#include "gradwire/data_parallel/arrangement/cap_tuner.h"

#include <algorithm>

namespace gradwire::data_parallel {

void CapTuner::add(absl::Duration time) {
  if (passes_ == kPasses) return;
  if (passes_++ > 0) fastest_[index_] = std::min(fastest_[index_], absl::ToDoubleSeconds(time));
}

bool CapTuner::advance() {
  if (!trying() || passes_ < kPasses) return false;
  ++index_;
  passes_ = 0;
  return true;
}

void CapTuner::choose(const std::vector<double>& seconds) {
  chosen_ = true;
  index_ = 0;
  double best = seconds[0] * (1 - kGain);
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    // A number that is not comparable (NaN) does not win.
    if (!(seconds[i] < best)) continue;
    best = seconds[i];
    index_ = i;
  }
}

}  // namespace gradwire::data_parallel
