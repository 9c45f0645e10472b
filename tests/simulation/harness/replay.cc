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

// Runs options.search schedules, starting with options.seed. Returns the seed of the shortest schedule that
// violates an invariant; options.seed if none does.
uint64_t shortest_failing_seed(const Options& options) {
  uint64_t found = options.seed, failed = 0, fewest = ~uint64_t{0};
  for (uint64_t seed = options.seed; seed < options.seed + options.search; ++seed) {
    const Simulator::Run run = simulator().run(seed, nullptr, nullptr);
    if (run.violation.empty()) continue;
    ++failed;
    if (run.events >= fewest) continue;
    fewest = run.events;
    found = seed;
  }
  std::cout << failed << " of " << options.search << " schedules violate an invariant; replaying seed "
            << found << "\n";
  return found;
}

int replay(uint64_t seed) {
  Trace trace;
  const Simulator::Run run = simulator().run(seed, nullptr, &trace);
  for (const std::string& line : trace.lines()) std::cout << line << "\n";
  std::cout << run.events << " events: " << (run.violation.empty() ? "no violation" : run.violation) << "\n";
  return run.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gradwire::simulation

// usage: replay --seed=N [--bug=NAME] [--search=COUNT]
//
// Runs the schedule of seed N and prints its trace. With --search it runs the seeds N to N + COUNT - 1 first,
// then prints the trace of the shortest schedule that violates an invariant. The program contains the
// deliberate bugs; without --bug the state machines behave as in production.
int main(int argc, char** argv) {
  using namespace gradwire::simulation;
  Options options;
  bool valid = argc > 1;
  for (int i = 1; i < argc; ++i) valid = parse(argv[i], options) && valid;
  if (!valid) {
    std::cerr << "usage: replay --seed=N [--bug=NAME] [--search=COUNT]; the bugs:\n";
    for (const Bug& bug : all_bugs()) std::cerr << "  " << bug.name << ": " << bug.what << "\n";
    return 2;
  }
  return replay(options.search > 0 ? shortest_failing_seed(options) : options.seed);
}
