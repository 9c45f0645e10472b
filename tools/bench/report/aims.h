#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/bench/report/report.h"

namespace gradwire::bench {

// A value that Gradwire should reach in a figure, and whether it does.
struct Aim {
  bool met = false;
  // "ok >= 20x", "MISS >= 20x" for a ratio to a peer; "ok <= 0.1" for a bound on Gradwire's own figure.
  std::string text;
};

// Returns the aim for the ratio of a row to its peer. The text is empty if the row has no such aim.
Aim aim_of(const Row& row);
// Returns the bound on Gradwire's own figure, which does not depend on the row's peer: a minimum for metrics
// where more is better, else a maximum. The text is empty if there is no bound.
Aim own_aim_of(const Row& row);

// Returns "aims: N of M met", then a line for each suite that has aims. A bound on Gradwire's own figure
// counts once, although the figure may have several rows.
std::string aims_summary(const std::vector<Row>& rows);

}  // namespace gradwire::bench
