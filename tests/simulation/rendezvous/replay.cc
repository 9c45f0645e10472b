#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/rendezvous/world.h"

// Runs one schedule and prints what happened: replay --seed=N [--bug=NAME]. It is built with the deliberate
// bugs; without --bug the machine does what it does in production.
int main(int argc, char** argv) {
  using namespace gradwire;
  uint64_t seed = 0;
  bool understood = argc > 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--seed=")) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
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
    std::cerr << "usage: replay --seed=N [--bug=NAME]; the bugs:";
    for (const simulation::Bug& bug : simulation::all_bugs())
      std::cerr << "\n  " << bug.name << ": " << bug.what;
    std::cerr << "\n";
    return 2;
  }
  std::vector<std::string> trace;
  rendezvous_simulation::World world(seed, nullptr, &trace);
  const std::string& violation = world.run();
  for (const std::string& line : trace) std::cout << line << "\n";
  std::cout << world.steps() << " events: " << (violation.empty() ? "all is well" : violation) << "\n";
  return violation.empty() ? 0 : 1;
}
