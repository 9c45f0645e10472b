#include <iostream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "gradwire/tests/simulation/harness/instrumented.h"
#include "gradwire/tests/simulation/harness/run_options.h"
#include "gtest/gtest.h"

namespace gradwire::simulation {
namespace {

constexpr uint64_t kInstrumentedSchedules = 1'000;

RunOptions& options() {
  static auto* const options = new RunOptions;
  return *options;
}

bool parse(absl::string_view argument) {
  if (absl::ConsumePrefix(&argument, "--schedules=")) return absl::SimpleAtoi(argument, &options().schedules);
  if (argument == "--seed=random") {
    options().seed = std::random_device()();
    return true;
  }
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &options().seed);
  return false;
}

}  // namespace

const RunOptions& run_options() { return options(); }

}  // namespace gradwire::simulation

int main(int argc, char** argv) {
  using gradwire::simulation::kInstrumented;
  using gradwire::simulation::options;
  ::testing::InitGoogleTest(&argc, argv);
  if (kInstrumented) options().schedules = gradwire::simulation::kInstrumentedSchedules;
  for (int i = 1; i < argc; ++i) {
    if (gradwire::simulation::parse(argv[i])) continue;
    std::cerr << "cannot parse the command line: got " << argv[i]
              << ", expected --schedules=N, --seed=N or --seed=random; run_options.h describes them\n";
    return 2;
  }
  std::cout << "--seed=" << options().seed << " --schedules=" << options().schedules << "\n";
  return RUN_ALL_TESTS();
}
