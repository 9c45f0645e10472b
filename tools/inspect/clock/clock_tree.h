#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/tools/inspect/clock/clock_fit.h"

namespace gradwire::inspect {

// The fits between pairs of clocks: {a, b} is the map from clock a to clock b.
using ClockFits = std::map<std::pair<std::size_t, std::size_t>, ClockFit>;

// Maps every one of `count` clocks to the clock `reference`, over other clocks where that has a smaller error
// or there is no fit between the two. std::nullopt for a clock that no fits connect to it. Each pair needs
// one direction only. Pairs with numbers that are not below `count` are ignored.
std::vector<std::optional<ClockFit>> align_clocks(std::size_t count, const ClockFits& fits,
                                                  std::size_t reference);

}  // namespace gradwire::inspect
