#include "gradwire/autograd/pass/plan.h"

#include <algorithm>
#include <utility>

namespace gradwire::autograd {

bool Plan::share_worker(const GradientRoute& a, const GradientRoute& b) const {
  for (const auto& [message, outputs] : a.messages()) {
    if (message.first != root_ && b.has_sender(message.first)) return true;
  }
  return false;
}

void Plan::add(GradientRoute reached) {
  // 1. Find the first part that has a worker in common with `reached`.
  std::size_t into = 0;
  while (into < parts_.size() && !share_worker(parts_[into], reached)) ++into;
  if (into == parts_.size()) {
    parts_.push_back(std::move(reached));
    return;
  }
  // 2. Join the other parts that have a worker in common with `reached` to that part.
  for (std::size_t other = parts_.size() - 1; other > into; --other) {
    if (!share_worker(parts_[other], reached)) continue;
    parts_[into].add(parts_[other]);
    parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(other));
  }
  parts_[into].add(reached);
}

const GradientRoute* Plan::part_of(uint64_t worker) const {
  if (worker == root_) return nullptr;
  for (const GradientRoute& part : parts_) {
    if (part.has_sender(worker)) return &part;
  }
  return nullptr;
}

bool Plan::fits() const {
  return parts_.size() <= kMaxParts &&
         std::all_of(parts_.begin(), parts_.end(),
                     [](const GradientRoute& part) { return part.tensors() <= GradientRoute::kMaxTensors; });
}

}  // namespace gradwire::autograd
