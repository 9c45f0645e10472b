#include "tests/simulation/pass/coverage.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace gradwire::pass_simulation {
namespace {

struct Names {
  const char* machine;
  std::vector<const char*> states;
  std::vector<const char*> events;
};

const std::vector<Names>& names() {
  static const std::vector<const char*> part_states = {"new", "wave", "work left", "idle", "ended", "failed"};
  static const std::vector<const char*> part_events = {
      "MARK",        "MARK again",   "NEEDED",      "NEEDED again", "MARK answered",   "RUN",
      "RUN again",   "RUN answered", "FINISH",      "FINISH again", "FINISH answered", "ABORT",
      "call failed", "node ran",     "node failed", "worker lost",  "released",        "cancelled"};
  static const std::vector<Names> all = {
      {"a participant's part", part_states, part_events},
      {"the root's part", part_states, part_events},
      {"a context at a worker",
       {"unknown", "live", "released"},
       {"opened", "forward", "sends", "inputs", "of a pass", "let go", "CLEANUP", "overdue", "origin lost",
        "other lost"}},
  };
  return all;
}

// What cannot happen between honest workers, or would be no event.
struct Impossible {
  const char* machine;
  const char* state;  // "*": any
  const char* event;  // "*": any
  const char* reason;
};
constexpr Impossible kImpossible[] = {
#include "tests/simulation/pass/impossible.inc"
};

bool listed(const Names& names, std::size_t state, std::size_t event) {
  const auto matches = [](std::string_view listed, std::string_view name) {
    return listed == name || listed == "*";
  };
  return std::any_of(std::begin(kImpossible), std::end(kImpossible), [&](const Impossible& entry) {
    return std::string_view(names.machine) == entry.machine && matches(entry.state, names.states[state]) &&
           matches(entry.event, names.events[event]);
  });
}

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

template <class F>
std::vector<std::string> pairs(F&& wanted) {
  std::vector<std::string> found;
  for (std::size_t m = 0; m < names().size(); ++m) {
    const Names& machine = names()[m];
    for (std::size_t s = 0; s < machine.states.size(); ++s) {
      for (std::size_t e = 0; e < machine.events.size(); ++e) {
        if (wanted(m, s, e))
          found.push_back(absl::StrCat(machine.machine, ": ", machine.states[s], " x ", machine.events[e]));
      }
    }
  }
  return found;
}

}  // namespace

std::string Coverage::print() const {
  std::string text;
  for (std::size_t m = 0; m < names().size(); ++m) {
    const Names& machine = names()[m];
    absl::StrAppend(&text, "\n", machine.machine, "\n", pad("", 16));
    for (const char* state : machine.states) absl::StrAppend(&text, pad(state, 12));
    for (std::size_t e = 0; e < machine.events.size(); ++e) {
      absl::StrAppend(&text, "\n", pad(machine.events[e], 16));
      for (std::size_t s = 0; s < machine.states.size(); ++s) {
        const uint64_t count = counts_[m][s][e];
        absl::StrAppend(&text, pad(count == 0 && listed(machine, s, e) ? "-" : absl::StrCat(count), 12));
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::vector<std::string> Coverage::unreached() const {
  return pairs([&](std::size_t m, std::size_t s, std::size_t e) {
    return counts_[m][s][e] == 0 && !listed(names()[m], s, e);
  });
}

std::vector<std::string> Coverage::reached_impossible() const {
  return pairs([&](std::size_t m, std::size_t s, std::size_t e) {
    return counts_[m][s][e] != 0 && listed(names()[m], s, e);
  });
}

}  // namespace gradwire::pass_simulation
