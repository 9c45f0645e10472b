#include <atomic>
#include <functional>
#include <iostream>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gradwire/tests/autograd/trial.h"
#include "gtest/gtest.h"

namespace programs {
namespace {

using gradwire::rpc::testing::Group;

// The number of programs of the family with exact results, and of each of the two others. Set by --programs=N
// and --real_programs=N.
uint64_t exact_programs = 100;
uint64_t real_programs = 20;
// The generator makes every situation in so many programs.
constexpr uint64_t kProgramsWithAll = 400;
// The test stops after this number of failures, because more would rarely show anything new.
constexpr int kFailures = 3;

// Calls `run` for the seeds 1 to `count`, in three threads.
void for_seeds(Family family, uint64_t count, const std::function<Trial(uint64_t)>& run) {
  std::atomic<uint64_t> next{1};
  std::atomic<int> failures{0}, fast{0};
  const absl::Time begun = absl::Now();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (uint64_t seed; (seed = next.fetch_add(1)) <= count && failures < kFailures;) {
        try {
          const Trial trial = run(seed);
          fast += trial.fast;
          if (trial.failure.empty()) continue;
          ADD_FAILURE() << trial.failure;
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::cout << count << " programs of the family " << name(family) << " in " << absl::Now() - begun << ": "
            << fast << " also in the fast mode\n";
  if (failures > 0) return;
  if (family == Family::kExact) {
    EXPECT_GE(fast, static_cast<int>(count) / 4);
  }
}

TEST(RandomPrograms, GradientsAreThoseOfOneProcess) {
  Group group(4);
  for_seeds(Family::kExact, exact_programs, [&](uint64_t seed) { return try_exact(group, seed, {}); });
  group.expect_empty();
}

void expect_the_bits_of_one_process(Family family) {
  Group wide(4), narrow(4, {.num_worker_threads = 1});
  for_seeds(family, real_programs, [&](uint64_t seed) {
    return try_real({&wide, &narrow}, 2, seed, {.family = family});
  });
  wide.expect_empty();
  narrow.expect_empty();
}

TEST(RandomPrograms, BitsAreThoseOfOneProcess) { expect_the_bits_of_one_process(Family::kReal); }

TEST(RandomPrograms, BitsOfElementwiseProgramsAreThoseOfOneProcess) {
  expect_the_bits_of_one_process(Family::kRealPlain);
}

// The generated programs contain every kind of operation, and every situation in the list.
TEST(RandomPrograms, ContainEverySituation) {
  std::set<std::string> missing = {"a cycle",
                                   "a call to oneself",
                                   "a call inside a handler of a handler",
                                   "a coroutine with a call",
                                   "a call nobody waits for",
                                   "one tensor twice in a message",
                                   "the undefined tensor in a message",
                                   "a reference as an argument",
                                   "a reference as a result",
                                   "a value fetched by its owner",
                                   "a value fetched from elsewhere",
                                   "a sparse gradient",
                                   "a received tensor changed in place",
                                   "several roots",
                                   "a grad_root",
                                   "three passes",
                                   "inputs",
                                   "backward elsewhere"};
  std::set<Kind> kinds;
  for (int kind = 0; kind <= static_cast<int>(Kind::kWait); ++kind) kinds.insert(static_cast<Kind>(kind));
  for (Kind kind : {Kind::kSin, Kind::kTanh}) kinds.erase(kind);
  for (uint64_t seed = 1; seed <= kProgramsWithAll; ++seed) {
    const Program program = generate(seed, {});
    const auto has = [&](const char* what, bool does) {
      if (does) missing.erase(what);
    };
    std::vector<int> caller(program.blocks.size(), -1);
    for (int b : blocks_called(program)) {
      const Block& block = program.blocks[b];
      std::set<int> awaited;
      for (const Operation& operation : block.operations) {
        if (operation.kind == Kind::kWait) awaited.insert(operation.ticket);
      }
      for (const Operation& operation : block.operations) {
        kinds.erase(operation.kind);
        has("a sparse gradient", operation.kind == Kind::kEmbedding && operation.numbers[0] != 0);
        has("a received tensor changed in place",
            operation.kind == Kind::kAddInPlace && operation.inputs[0] < block.parameters);
        if (operation.kind == Kind::kFetch) {
          const bool local = block.refs[operation.ref_inputs[0]].owner == block.agent;
          has(local ? "a value fetched by its owner" : "a value fetched from elsewhere", true);
        }
        if (operation.block < 0) continue;
        caller[operation.block] = b;
        const int to = program.blocks[operation.block].agent;
        has("a call to oneself", to == block.agent);
        has("a cycle", b != 0 && to != block.agent && program.blocks[caller[b]].agent == to);
        has("a call inside a handler of a handler", b != 0 && caller[b] != 0);
        has("a coroutine with a call", block.asynchronous);
        has("a call nobody waits for", operation.ticket >= 0 && !awaited.contains(operation.ticket));
        has("a reference as an argument", !operation.ref_inputs.empty());
        has("a reference as a result", operation.kind == Kind::kCall && !operation.ref_outputs.empty());
        std::set<int> distinct(operation.inputs.begin(), operation.inputs.end());
        has("one tensor twice in a message", distinct.size() < operation.inputs.size());
        has("the undefined tensor in a message", distinct.contains(kNothing));
      }
    }
    has("three passes", program.passes.size() == 3);
    has("backward elsewhere", program.backward_agent != program.blocks[0].agent);
    for (const Pass& pass : program.passes) {
      has("inputs", !pass.inputs.empty());
      has("several roots", pass.roots.size() > 1);
      for (const Root& root : pass.roots) has("a grad_root", root.seed != 0);
    }
  }
  EXPECT_TRUE(missing.empty()) << "no program has: " << absl::StrJoin(missing, ", ");
  for (Kind kind : kinds) {
    if (kind != Kind::kConstant) ADD_FAILURE() << "no program has the operation " << name(kind);
  }
}

bool parse(absl::string_view argument) {
  if (absl::ConsumePrefix(&argument, "--real_programs=")) return absl::SimpleAtoi(argument, &real_programs);
  return absl::ConsumePrefix(&argument, "--programs=") && absl::SimpleAtoi(argument, &exact_programs);
}

}  // namespace
}  // namespace programs

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (programs::parse(argv[i])) continue;
    std::cerr << "cannot parse the command line: got " << argv[i]
              << ", expected --programs=N or --real_programs=N\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
