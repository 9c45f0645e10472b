#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/pass/world.h"

// Runs one schedule and prints what happened: replay --seed=N [--bug=NAME] [--search=COUNT]. With --search it is, of COUNT
// schedules from N on, the shortest that goes wrong. It is built with the deliberate bugs; without --bug the
// machines do what they do in production.
int main(int argc, char** argv) {
  using namespace gradwire;
  using pass_simulation::World;
  uint64_t seed = 0, search = 0;
  bool understood = argc > 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--seed=")) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
      continue;
    }
    if (argument.starts_with("--search=")) {
      search = std::strtoull(argv[i] + 9, nullptr, 10);
      continue;
    }
    const auto bugs = simulation::all_bugs();
    const auto bug = std::find_if(bugs.begin(), bugs.end(), [argument](const simulation::Bug& bug) {
      return argument.starts_with("--bug=") && argument.substr(6) == bug.name;
    });
    if (bug == bugs.end()) {
      understood = false;
    } else {
      simulation::chosen_bug = bug->name;
    }
  }
  if (!understood) {
    std::cerr << "usage: replay --seed=N [--bug=NAME] [--search=COUNT]; the bugs:";
    for (const simulation::Bug& bug : simulation::all_bugs())
      std::cerr << "\n  " << bug.name << ": " << bug.what;
    std::cerr << "\n";
    return 2;
  }
  uint64_t wrong = 0, fewest = ~uint64_t{0};
  const uint64_t first = seed;
  for (uint64_t next = first; next < first + search; ++next) {
    World world(next, nullptr, nullptr);
    if (world.run().empty()) continue;
    ++wrong;
    if (world.steps() >= fewest) continue;
    fewest = world.steps();
    seed = next;
  }
  if (search > 0)
    std::cout << wrong << " of " << search << " schedules go wrong; this is seed " << seed << "\n";
  pass_simulation::Trace trace;
  World world(seed, nullptr, &trace);
  const std::string& violation = world.run();
  for (const std::string& line : trace.lines()) std::cout << line << "\n";
  std::cout << world.steps() << " events: " << (violation.empty() ? "all is well" : violation) << "\n";
  return violation.empty() ? 0 : 1;
}
