#include "gradwire/device/to_cpu.h"

#include <ATen/ops/stack.h>

#include <cstddef>
#include <utility>

namespace gradwire::device {

std::vector<at::Tensor> scalars_to_cpu(std::vector<at::Tensor> scalars) {
  const auto is_left = [&scalars](std::size_t i) { return scalars[i].defined() && !scalars[i].is_cpu(); };
  for (std::size_t first = 0; first < scalars.size(); ++first) {
    if (!is_left(first)) continue;
    std::vector<std::size_t> positions;
    std::vector<at::Tensor> alike;
    for (std::size_t i = first; i < scalars.size(); ++i) {
      if (!is_left(i) || scalars[i].device() != scalars[first].device() ||
          scalars[i].scalar_type() != scalars[first].scalar_type()) {
        continue;
      }
      positions.push_back(i);
      alike.push_back(scalars[i]);
    }
    const std::vector<at::Tensor> moved = at::stack(alike).cpu().unbind();
    for (std::size_t i = 0; i < positions.size(); ++i) scalars[positions[i]] = moved[i];
  }
  return scalars;
}

}  // namespace gradwire::device
