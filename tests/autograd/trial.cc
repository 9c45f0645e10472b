#include "gradwire/tests/autograd/trial.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/autograd/distributed.h"

namespace programs {
namespace {

using gradwire::autograd::BackwardMode;
using gradwire::rpc::testing::Group;

// What makes a failure of `wrong`, which says what is wrong with a program.
std::string explain(const Program& program, const std::string& difference,
                    const std::function<std::string(const Program&)>& wrong) {
  // An error takes its time; what is shrunk must still differ in its gradients, or still fail.
  int runs = 0;
  const Program small = shrink(program, [&](const Program& smaller) {
    return ++runs < 300 && run_here(smaller).error.empty() && !wrong(smaller).empty();
  });
  std::string still = wrong(small);
  return absl::StrCat(
      difference, "\n", to_text(program),
      "\nA smaller program: ", still.empty() ? "(it does not fail every time)" : still, "\n", to_text(small),
      "\nto run it again: bazel run //tests/autograd:random_programs -- --family=", name(program.family),
      " --seed=", program.seed, "\n");
}

// Which calls of hooks must be as in one process. With inputs, which nodes need not run is the engine's
// affair.
Hooks hooks_of(const Program& program) {
  for (const Pass& pass : program.passes) {
    if (!pass.inputs.empty()) return Hooks::kNone;
  }
  return Hooks::kAll;
}

}  // namespace

Trial try_exact(const Group& group, uint64_t seed, const GeneratorOptions& options) {
  const Program program = make_program(seed, options);
  Traits traits;
  const Outcome expected = run_here(program, &traits);
  Trial trial;
  const auto wrong = [&](const Program& program, const Outcome& expected, BackwardMode mode) {
    // The fast mode runs nodes that nothing comes to.
    const Hooks hooks =
        mode == BackwardMode::kFast ? std::min(Hooks::kDefined, hooks_of(program)) : hooks_of(program);
    return difference(program, expected, run_distributed(group, program, {.mode = mode}), /*bits=*/false,
                      hooks);
  };
  for (BackwardMode mode : {BackwardMode::kSmart, BackwardMode::kFast}) {
    if (mode == BackwardMode::kFast && !traits.messages_used) continue;
    trial.fast |= mode == BackwardMode::kFast;
    const std::string found = wrong(program, expected, mode);
    if (found.empty()) continue;
    trial.failure = absl::StrCat(mode == BackwardMode::kFast ? "fast mode: " : "smart mode: ",
                                 explain(program, found, [&](const Program& smaller) -> std::string {
                                   Traits traits;
                                   const Outcome expected = run_here(smaller, &traits);
                                   if (mode == BackwardMode::kFast && !traits.messages_used) return "";
                                   return wrong(smaller, expected, mode);
                                 }));
    break;
  }
  return trial;
}

Trial try_real(const std::vector<const Group*>& groups, int repetitions, uint64_t seed,
               const GeneratorOptions& options) {
  const Program program = make_program(seed, options);
  Trial trial;
  const auto wrong = [&](const Program& program) -> std::string {
    const Outcome expected = run_here(program);
    if (!expected.error.empty()) return expected.error;
    for (int i = 0; i < repetitions; ++i) {
      for (const Group* group : groups) {
        const Outcome got = run_distributed(*group, program);
        const std::string found = difference(program, expected, got, /*bits=*/true, hooks_of(program));
        if (!found.empty()) return found;
      }
    }
    return "";
  };
  const std::string found = wrong(program);
  if (!found.empty()) trial.failure = explain(program, found, wrong);
  return trial;
}

}  // namespace programs
