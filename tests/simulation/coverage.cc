#include "tests/simulation/coverage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::simulation {
namespace {

struct Names {
  const char* machine;
  std::vector<const char*> states;
  std::vector<const char*> events;
};

const std::vector<Names>& names() {
  static const std::vector<Names> all = {
      {"a fork at its holder",
       {"absent", "unconfirmed", "unconfirmed, released", "confirmed", "confirmed, released"},
       {"released", "shared", "unshared", "added", "add refused", "created", "creation failed",
        "child confirmed", "child never came", "asked: revoke", "owner lost"}},
      {"a fork at its owner",
       {"RRef unknown", "fork unknown", "known", "deleted", "holder lost", "kept for lost"},
       {"create", "add", "delete", "delete, settled", "register", "unregister"}},
      {"a fence",
       {"none", "due", "running"},
       {"lose", "fence", "asked", "asked, waits", "asked by dead", "answered", "answered: refused",
        "answered late", "join"}},
      {"a member",
       {"unknown", "member", "left", "dead"},
       {"joins", "join refused", "leaves", "dies", "accused by one that is gone"}},
      {"a watched worker",
       {"unwatched", "alive", "suspect", "dead"},
       {"connected", "heard", "disconnected", "refused", "unreachable", "heartbeat", "accused", "removed"}},
  };
  return all;
}

// What cannot happen between honest workers, or would be no event.
struct Impossible {
  const char* machine;
  const char* state;  // "*": any
  const char* event;
  const char* reason;
};
constexpr Impossible kImpossible[] = {
#include "tests/simulation/impossible.inc"
};

bool listed(const Names& names, std::size_t state, std::size_t event) {
  const std::string_view machine = names.machine, s = names.states[state], e = names.events[event];
  return std::any_of(std::begin(kImpossible), std::end(kImpossible), [&](const Impossible& entry) {
    return machine == entry.machine && (s == entry.state || std::string_view(entry.state) == "*") &&
           e == entry.event;
  });
}

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

}  // namespace

void Coverage::add(const Coverage& other) {
  for (std::size_t m = 0; m < counts_.size(); ++m) {
    for (int s = 0; s < kMost; ++s) {
      for (int e = 0; e < kMost; ++e) counts_[m][s][e] += other.counts_[m][s][e];
    }
  }
}

std::string Coverage::print() const {
  std::string text;
  for (std::size_t m = 0; m < names().size(); ++m) {
    const Names& machine = names()[m];
    absl::StrAppend(&text, "\n", machine.machine, "\n", pad("", 24));
    for (const char* state : machine.states) absl::StrAppend(&text, pad(state, 23));
    for (std::size_t e = 0; e < machine.events.size(); ++e) {
      absl::StrAppend(&text, "\n", pad(machine.events[e], 24));
      for (std::size_t s = 0; s < machine.states.size(); ++s) {
        const uint64_t count = counts_[m][s][e];
        absl::StrAppend(&text, pad(count == 0 && listed(machine, s, e) ? "-" : absl::StrCat(count), 23));
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::vector<std::string> Coverage::unreached() const {
  std::vector<std::string> pairs;
  for (std::size_t m = 0; m < names().size(); ++m) {
    const Names& machine = names()[m];
    for (std::size_t s = 0; s < machine.states.size(); ++s) {
      for (std::size_t e = 0; e < machine.events.size(); ++e) {
        if (counts_[m][s][e] == 0 && !listed(machine, s, e)) {
          pairs.push_back(absl::StrCat(machine.machine, ": ", machine.states[s], " x ", machine.events[e]));
        }
      }
    }
  }
  return pairs;
}

}  // namespace gradwire::simulation
