#include "gradwire/tests/simulation/harness/coverage_table.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/harness/run_options.h"

namespace gradwire::simulation {
namespace {

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

// Returns the width of a column that holds these names, or counts.
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

bool CoverageTable::is_rare(const MachineNames& machine, std::size_t state, std::size_t event) const {
  return std::any_of(rare_.begin(), rare_.end(), [&](const Rare& entry) {
    return std::string_view(machine.name) == entry.machine &&
           std::string_view(machine.states[state]) == entry.state &&
           std::string_view(machine.events[event]) == entry.event;
  });
}

std::vector<std::string> CoverageTable::unreached(uint64_t schedules) const {
  constexpr uint64_t kRequiredHits = 3;
  constexpr uint64_t kSchedulesForRare = 1'000'000;
  std::vector<std::string> found;
  if (schedules < RunOptions::kSchedules) return found;
  for_each_pair([&](const std::string& pair, uint64_t count, bool impossible, bool rare) {
    const uint64_t required = impossible ? 0 : !rare ? kRequiredHits : schedules >= kSchedulesForRare ? 1 : 0;
    if (count < required) found.push_back(absl::StrCat(pair, ", ", count, " times"));
  });
  return found;
}

std::vector<std::string> CoverageTable::reached_impossible() const {
  std::vector<std::string> found;
  for_each_pair([&](const std::string& pair, uint64_t count, bool impossible, bool) {
    if (impossible && count > 0) found.push_back(pair);
  });
  return found;
}

void CoverageTable::for_each_pair(const std::function<void(const std::string& pair, uint64_t count,
                                                           bool impossible, bool rare)>& visit) const {
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    const MachineNames& machine = machines_[m];
    for (std::size_t s = 0; s < machine.states.size(); ++s) {
      for (std::size_t e = 0; e < machine.events.size(); ++e) {
        visit(absl::StrCat(machine.name, ": ", machine.states[s], " x ", machine.events[e]), counts_[m][s][e],
              listed(machine, s, e), is_rare(machine, s, e));
      }
    }
  }
}

}  // namespace gradwire::simulation
