#include "gradwire/rpc/mesh/tree_plan.h"

#include <algorithm>

namespace gradwire::rpc {

std::vector<std::size_t> TreePlan::heads(std::size_t begin, std::size_t end) const {
  std::vector<std::size_t> heads;
  const std::size_t parts = std::min(fanout_, end - begin);
  for (std::size_t part = 0; part < parts; ++part) heads.push_back(begin + part * (end - begin) / parts);
  return heads;
}

std::vector<std::size_t> TreePlan::children(std::size_t place) const {
  return heads(place + 1, subtree_end(place));
}

// Goes down from the root: of the parts of a range, the last one that begins at or before the place contains
// it.
std::size_t TreePlan::subtree_end(std::size_t place) const {
  std::size_t begin = 0;
  std::size_t end = places_;
  while (true) {
    const std::vector<std::size_t> parts = heads(begin, end);
    const auto after = std::upper_bound(parts.begin(), parts.end(), place);
    if (after != parts.end()) end = *after;
    const std::size_t head = *(after - 1);
    if (head == place) return end;
    begin = head + 1;
  }
}

}  // namespace gradwire::rpc
