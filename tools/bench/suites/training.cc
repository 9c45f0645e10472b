#include "gradwire/tools/bench/suites/training.h"

#include <ATen/ops/empty.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/tools/bench/run/measure.h"

namespace gradwire::bench {
namespace {

enum Kind : std::size_t { kPlain, kFast, kLocal, kKinds };

}  // namespace

Measurement run_training(const Task& task, const TrainingStep& step, int64_t (*now)()) {
  const auto run_checked = [&](int64_t) { step.check(); };
  if (!task.extra_figures) {
    return measure(
        {.seconds = task.seconds, .now = now}, [](int64_t) {}, [&](int64_t) { step.run(false); },
        run_checked);
  }
  std::vector<Kind> kinds = {kPlain};
  if (step.has_modes) kinds.push_back(kFast);
  if (step.local != nullptr) kinds.push_back(kLocal);
  Measurement result{.calls = 1};
  if (kinds.size() == 1) return result;

  // Alternate between the kinds after each step, so that a disturbance affects all kinds equally.
  const auto kind_of = [&](int64_t i) { return kinds[static_cast<std::size_t>(i) % kinds.size()]; };
  const Measurement all = measure(
      {.seconds = task.seconds, .now = now}, [](int64_t) {},
      [&](int64_t i) { kind_of(i) == kLocal ? step.local() : step.run(kind_of(i) == kFast); },
      [&](int64_t i) {
        if (kind_of(i) != kLocal) step.check();
      });
  std::array<std::vector<float>, kKinds> micros;
  for (int64_t i = all.calls - all.timed_calls; i < all.calls; ++i) {
    micros[kind_of(i)].push_back(all.micros[static_cast<std::size_t>(i - all.calls + all.timed_calls)]);
  }
  std::array<double, kKinds> medians{};
  for (std::size_t kind = 0; kind < kKinds; ++kind) medians[kind] = percentile(std::move(micros[kind]), 0.5);
  if (step.has_modes && medians[kFast] > 0) {
    result.figures.push_back({"smart_over_fast", medians[kPlain] / medians[kFast]});
  }
  if (step.local != nullptr) {
    result.figures.push_back({"overhead_per_hop_us", (medians[kPlain] - medians[kLocal]) / step.hops});
  }
  return result;
}

Leaves::Leaves()
    : x_(at::empty({2}, at::kFloat).fill_(1).requires_grad_()),
      y_(at::empty({2}, at::kFloat).fill_(2).requires_grad_()) {}

void Leaves::clear() const {
  x_.mutable_grad().reset();
  y_.mutable_grad().reset();
}

void Leaves::add_up_locally(int additions) const {
  clear();
  at::Tensor sum = x_;
  for (int i = 0; i < additions; ++i) sum = sum.add(y_);
  sum.sum().backward();
}

void Leaves::fan_out_locally(int additions) const {
  clear();
  at::Tensor sum = x_.add(y_);
  for (int i = 1; i < additions; ++i) sum = sum.add(x_.add(y_));
  sum.sum().backward();
}

void check_gradient(const at::Tensor& gradient, float want) {
  if (gradient.defined() && gradient.numel() == 2 && gradient.scalar_type() == at::kFloat) {
    const at::Tensor dense = gradient.contiguous();
    const float* values = dense.const_data_ptr<float>();
    if (values[0] == want && values[1] == want) return;
  }
  throw std::runtime_error("wrong gradient: expected two floats of value " + std::to_string(want));
}

}  // namespace gradwire::bench
