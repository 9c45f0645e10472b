#include "gradwire/tools/inspect/trace/lanes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

namespace gradwire::inspect {

// 1. Visit the periods by their begin.
// 2. Give back the lanes of those that have ended.
// 3. Take the lowest free lane, or a new one.
std::vector<std::size_t> assign_lanes(const std::vector<std::pair<int64_t, int64_t>>& periods) {
  std::vector<std::size_t> order(periods.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return periods[a].first < periods[b].first; });

  using Used = std::pair<int64_t, std::size_t>;  // When it ends, and the lane.
  std::priority_queue<Used, std::vector<Used>, std::greater<>> used;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free;
  std::size_t count = 0;
  std::vector<std::size_t> lanes(periods.size());
  for (const std::size_t period : order) {
    while (!used.empty() && used.top().first <= periods[period].first) {
      free.push(used.top().second);
      used.pop();
    }
    if (free.empty()) free.push(count++);
    lanes[period] = free.top();
    free.pop();
    used.emplace(periods[period].second, lanes[period]);
  }
  return lanes;
}

}  // namespace gradwire::inspect
