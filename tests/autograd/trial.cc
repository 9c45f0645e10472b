#include "gradwire/tests/autograd/trial.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/autograd/distributed.h"

namespace programs {
namespace {

using gradwire::autograd::BackwardMode;
using gradwire::rpc::testing::Group;

// Returns the text of a failure, with a smaller program that fails, too. `difference`: what is wrong with
// `program`. `wrong`: runs a program and describes what is wrong with it, or returns "".
std::string explain(const Program& program, const std::string& difference,
                    const std::function<std::string(const Program&)>& wrong) {
  // At most 300 runs, because a run that ends with an error may take long. A smaller program must run without
  // an error in one process.
  int runs = 0;
  const Program small = shrink(program, [&](const Program& smaller) {
    return ++runs < 300 && run_in_one_process(smaller).error.empty() && !wrong(smaller).empty();
  });
  std::string still = wrong(small);
  return absl::StrCat(
      difference, "\n", to_text(program),
      "\nA smaller program: ", still.empty() ? "(it does not fail every time)" : still, "\n", to_text(small),
      "\nrepeat it with: bazel run //tests/autograd:random_programs -- --family=", name(program.family),
      " --seed=", program.seed, "\n");
}

// Returns the calls of hooks that must be the same as in one process. If a pass has inputs, an engine may
// skip nodes, so no calls are compared.
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
  const Outcome expected = run_in_one_process(program, &traits);
  Trial trial;
  const auto wrong = [&](const Program& program, const Outcome& expected, BackwardMode mode) {
    // The fast mode also runs nodes that get no gradient, so calls with an undefined gradient are not
    // compared.
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
                                   const Outcome expected = run_in_one_process(smaller, &traits);
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
    const Outcome expected = run_in_one_process(program);
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
