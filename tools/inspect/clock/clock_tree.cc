#include "gradwire/tools/inspect/clock/clock_tree.h"

namespace gradwire::inspect {

// Dijkstra's algorithm; a job has few enough workers for a search without a heap.
std::vector<std::optional<ClockFit>> align_clocks(std::size_t count, const ClockFits& fits,
                                                  std::size_t reference) {
  // For each clock, the maps to it from other clocks.
  std::vector<std::vector<std::pair<std::size_t, ClockFit>>> incoming(count);
  for (const auto& [pair, fit] : fits) {
    const auto [from, to] = pair;
    if (from >= count || to >= count || from == to) continue;
    incoming[to].emplace_back(from, fit);
    incoming[from].emplace_back(to, fit.inverse());
  }

  std::vector<std::optional<ClockFit>> best(count);
  if (reference >= count) return best;
  best[reference] = ClockFit();
  std::vector<bool> done(count, false);
  while (true) {
    std::size_t next = count;
    for (std::size_t clock = 0; clock < count; ++clock) {
      if (!best[clock] || done[clock]) continue;
      if (next == count || best[clock]->error() < best[next]->error()) next = clock;
    }
    if (next == count) return best;
    done[next] = true;
    for (const auto& [from, fit] : incoming[next]) {
      const ClockFit through = fit.then(*best[next]);
      if (!best[from] || through.error() < best[from]->error()) best[from] = through;
    }
  }
}

}  // namespace gradwire::inspect
