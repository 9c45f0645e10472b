#include "gradwire/tools/bench/suites/resident.h"

#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <map>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire::bench {

at::Tensor resident_parameter(int64_t floats) {
  static Mutex mutex;
  static auto& parameters = *new std::map<int64_t, at::Tensor>;
  const MutexLock lock(mutex);
  at::Tensor& parameter = parameters[floats];
  if (!parameter.defined()) parameter = at::full({floats}, 0.5, at::kFloat);
  return parameter;
}

int64_t sleep_for(int64_t microseconds) {
  absl::SleepFor(absl::Microseconds(std::clamp<int64_t>(microseconds, 0, 1'000'000)));
  return microseconds;
}

at::Tensor sum_of(const at::Tensor& x) { return at::sum(x); }

}  // namespace gradwire::bench
