// Runs random programs. For a failure it prints what is wrong, and a smaller program that fails, too:
//   bazel run //tests/autograd:random_programs -- --seed=N [--count=N] [--family=exact|real|real_plain]
//       [--repeat=N] [--text]

#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/tests/autograd/trial.h"
#include "gtest/gtest.h"

namespace programs {
namespace {

uint64_t seed = 1;
uint64_t count = 1;
int repeat = 1;
bool text = false;
GeneratorOptions options;

bool parse(absl::string_view argument) {
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &seed);
  if (absl::ConsumePrefix(&argument, "--count=")) return absl::SimpleAtoi(argument, &count);
  if (absl::ConsumePrefix(&argument, "--repeat=")) return absl::SimpleAtoi(argument, &repeat);
  if (argument == "--text") return text = true;
  for (Family family : {Family::kExact, Family::kReal, Family::kRealPlain}) {
    if (argument != absl::StrCat("--family=", name(family))) continue;
    options.family = family;
    return true;
  }
  return false;
}

TEST(RandomPrograms, GiveTheGradientsOfOneProcess) {
  gradwire::rpc::testing::Group wide(4), narrow(4, {.num_worker_threads = 1});
  for (uint64_t i = 0; i < count; ++i, ++seed) {
    if (text) std::cout << to_text(make_program(seed, options)) << std::endl;
    for (int k = 0; k < repeat; ++k) {
      const Trial trial = options.family == Family::kExact ? try_exact(wide, seed, options)
                                                           : try_real({&wide, &narrow}, 3, seed, options);
      if (trial.failure.empty()) continue;
      ADD_FAILURE() << trial.failure;
      break;
    }
  }
}

}  // namespace
}  // namespace programs

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (programs::parse(argv[i])) continue;
    std::cerr << "unknown option or invalid value: got " << argv[i]
              << ", expected --seed=N, --count=N, --family=exact|real|real_plain, --repeat=N or --text\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
