#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/harness/simulator.h"

namespace gradwire::simulation {
namespace {

struct Options {
  uint64_t seed = 0;
  uint64_t search = 0;
};

bool choose_bug(std::string_view name) {
  for (const Bug& bug : all_bugs()) {
    if (bug.name == name) chosen_bug = bug.name;
  }
  return chosen_bug == name;
}

bool parse(absl::string_view argument, Options& options) {
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &options.seed);
  if (absl::ConsumePrefix(&argument, "--search=")) return absl::SimpleAtoi(argument, &options.search);
  return absl::ConsumePrefix(&argument, "--bug=") && choose_bug({argument.data(), argument.size()});
}

// Of the schedules from options.seed on, the shortest that goes wrong; options.seed if none does.
uint64_t shortest_wrong(const Options& options) {
  uint64_t found = options.seed, wrong = 0, fewest = ~uint64_t{0};
  for (uint64_t seed = options.seed; seed < options.seed + options.search; ++seed) {
    const Simulator::Run run = simulator().run(seed, nullptr, nullptr);
    if (run.violation.empty()) continue;
    ++wrong;
    if (run.events >= fewest) continue;
    fewest = run.events;
    found = seed;
  }
  std::cout << wrong << " of " << options.search << " schedules go wrong; this is seed " << found << "\n";
  return found;
}

int replay(uint64_t seed) {
  Trace trace;
  const Simulator::Run run = simulator().run(seed, nullptr, &trace);
  for (const std::string& line : trace.lines()) std::cout << line << "\n";
  std::cout << run.events << " events: " << (run.violation.empty() ? "all is well" : run.violation) << "\n";
  return run.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gradwire::simulation

// Runs one schedule and prints what happened: replay --seed=N [--bug=NAME] [--search=COUNT]. With --search it
// is the shortest that goes wrong of COUNT schedules from N on. It is built with the deliberate bugs; without
// --bug the machines do what they do in production.
int main(int argc, char** argv) {
  using namespace gradwire::simulation;
  Options options;
  bool understood = argc > 1;
  for (int i = 1; i < argc; ++i) understood = parse(argv[i], options) && understood;
  if (!understood) {
    std::cerr << "usage: replay --seed=N [--bug=NAME] [--search=COUNT]; the bugs:\n";
    for (const Bug& bug : all_bugs()) std::cerr << "  " << bug.name << ": " << bug.what << "\n";
    return 2;
  }
  return replay(options.search > 0 ? shortest_wrong(options) : options.seed);
}
