#include "tests/simulation/coverage_table.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace gradwire::simulation {
namespace {

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

// Of a column that holds the names, or counts.
std::size_t width_of(const std::vector<const char*>& names) {
  std::size_t width = 10;
  for (const std::string_view name : names) width = std::max(width, name.size());
  return width + 2;
}

}  // namespace

bool CoverageTable::listed(const MachineNames& machine, std::size_t state, std::size_t event) const {
  const auto matches = [](std::string_view listed, std::string_view name) {
    return listed == name || listed == "*";
  };
  return std::any_of(impossible_.begin(), impossible_.end(), [&](const Impossible& entry) {
    return std::string_view(machine.name) == entry.machine && matches(entry.state, machine.states[state]) &&
           matches(entry.event, machine.events[event]);
  });
}

std::string CoverageTable::print() const {
  std::string text;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    const MachineNames& machine = machines_[m];
    const std::size_t first = width_of(machine.events), others = width_of(machine.states);
    absl::StrAppend(&text, "\n", machine.name, "\n", pad("", first));
    for (const char* state : machine.states) absl::StrAppend(&text, pad(state, others));
    for (std::size_t e = 0; e < machine.events.size(); ++e) {
      absl::StrAppend(&text, "\n", pad(machine.events[e], first));
      for (std::size_t s = 0; s < machine.states.size(); ++s) {
        const uint64_t count = counts_[m][s][e];
        absl::StrAppend(&text, pad(count == 0 && listed(machine, s, e) ? "-" : absl::StrCat(count), others));
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::vector<std::string> CoverageTable::unreached() const { return pairs(/*met=*/false, /*listed=*/false); }

std::vector<std::string> CoverageTable::reached_impossible() const {
  return pairs(/*met=*/true, /*listed=*/true);
}

std::vector<std::string> CoverageTable::pairs(bool met, bool is_listed) const {
  std::vector<std::string> found;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    const MachineNames& machine = machines_[m];
    for (std::size_t s = 0; s < machine.states.size(); ++s) {
      for (std::size_t e = 0; e < machine.events.size(); ++e) {
        if ((counts_[m][s][e] != 0) == met && listed(machine, s, e) == is_listed)
          found.push_back(absl::StrCat(machine.name, ": ", machine.states[s], " x ", machine.events[e]));
      }
    }
  }
  return found;
}

}  // namespace gradwire::simulation
