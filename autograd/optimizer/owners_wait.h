#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/log/progress.h"

namespace gradwire::autograd {

// Describes a wait for the calls to the owners of an optimizer's parameters. `names`: the owners; `done`:
// whether the call to the owner with this index has ended. `what`: the function, for example
// "DistributedOptimizer<SGD>::save". Nullopt if all calls have ended.
std::optional<ProgressState> owners_state(absl::string_view what, const std::vector<std::string>& names,
                                          absl::FunctionRef<bool(std::size_t)> done);

// Waits until all calls have ended, and shows which owners have not answered. Returns early on a thread that
// must not wait: then Future::result() is the error. `calls` has one future for each of `names`.
template <class T>
void show_owners_wait(absl::string_view what, const std::vector<std::string>& names,
                      const std::vector<Future<T>>& calls, const ProgressTarget& target = {}) {
  Progress progress(target);
  for (const Future<T>& call : calls) {
    while (!call.wait_for(progress.until_next())) {
      bool due = false;
      progress.update([&]() -> std::optional<ProgressState> {
        due = true;
        return owners_state(what, names, [&](std::size_t i) { return calls.at(i).done(); });
      });
      // The wait has ended although neither the call nor the time has.
      if (!due && !call.done()) return;
    }
  }
  progress.finish(std::string(what) + ": all owners have answered");
}

}  // namespace gradwire::autograd
