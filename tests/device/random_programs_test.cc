#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gradwire/tests/device/random_program.h"

// bazel test //tests/device:random_programs_test --test_arg=--programs=100000 --test_arg=--seed=N

namespace gradwire {
namespace {

struct ProgramOptions {
  uint64_t seed = 1;
  uint64_t programs = 600;
};

ProgramOptions& options() {
  static auto* const options = new ProgramOptions;
  return *options;
}

TEST(RandomPrograms, GiveTheCpusBits) {
  for (uint64_t seed = options().seed; seed < options().seed + options().programs; seed++) {
    ASSERT_EQ(run_random_program(seed, Mistake::kNone), "") << "seed " << seed;
  }
  lag::expect_nothing_left();
}

// Runs programs with a mistake until one of them shows it. Returns their number.
int programs_until_found(Mistake mistake) {
  constexpr int kMost = 1000;
  for (int i = 1; i <= kMost; i++) {
    std::string wrong;
    try {
      wrong = run_random_program(options().seed + static_cast<uint64_t>(i), mistake);
    } catch (const c10::Error& error) {
      wrong = error.what_without_backtrace();
    }
    lag::synchronize_all();
    for (int device = 0; device < lag::device_count(); device++) lag::restore(device);
    if (!wrong.empty()) return i;
  }
  ADD_FAILURE() << kMost << " programs with a mistake gave the right values";
  return kMost;
}

TEST(RandomPrograms, MissingWaitIsFound) {
  std::cout << "found by program " << programs_until_found(Mistake::kNoWait) << "\n";
}

TEST(RandomPrograms, MissingRecordStreamIsFound) {
  std::cout << "found by program " << programs_until_found(Mistake::kNoRecordStream) << "\n";
}

TEST(RandomPrograms, EarlyEventIsFound) {
  std::cout << "found by program " << programs_until_found(Mistake::kEarlyEvent) << "\n";
}

bool parse(absl::string_view argument) {
  if (absl::ConsumePrefix(&argument, "--programs=")) return absl::SimpleAtoi(argument, &options().programs);
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &options().seed);
  return false;
}

}  // namespace
}  // namespace gradwire

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i++) {
    if (gradwire::parse(argv[i])) continue;
    std::cerr << "cannot parse the command line: got " << argv[i] << ", expected --programs=N or --seed=N\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
