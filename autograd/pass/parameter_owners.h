#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/autograd/pass/context.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/core/worker.h"

// Groups parameters by the worker that owns them, and waits for calls to all owners.
namespace gradwire::autograd {

struct ContextState;

using ParameterRefs = std::vector<rpc::RRef<at::Tensor>>;

// The parameters, by group, that one worker owns.
struct ParameterOwner {
  // The parameters of group `number` that the worker owns, and the position of each in the whole group.
  struct Group {
    std::size_t number;
    ParameterRefs parameters;
    std::vector<std::size_t> positions;
  };

  rpc::WorkerInfo worker;
  // The groups of which the worker owns parameters, ascending.
  std::vector<Group> groups;
};

// Returns the owners in the order in which they first appear. Throws Error, InvalidArgument, if a reference
// is empty.
std::vector<ParameterOwner> by_owner(absl::Span<const ParameterRefs> groups);

// Returns a context that is live on `agent`. Throws Error, NotFound, if it is not live.
std::shared_ptr<ContextState> live_context(const rpc::Agent& agent, const ContextRef& context);
// Ensures that these owners are notified when the context ends, even if no message of it reaches them.
void notify_of_end(const rpc::Agent& agent, const rpc::Id& context,
                   const std::vector<ParameterOwner>& owners);

namespace owners_internal {
// Throws `status` with a prefix that names the function, the owner, and the number of owners that failed.
[[noreturn]] void throw_failure(const absl::Status& status, absl::string_view what,
                                const ParameterOwner& owner, std::size_t failed, std::size_t all);
}  // namespace owners_internal

// Waits for the calls to all owners and returns their results, or throws the first error. `calls` has one
// future for each owner, in the same order. No call is under way when this function returns or throws. `what`
// is the name of the function for the message, for example "DistributedOptimizer<SGD>::step".
template <class T>
auto wait_for_owners(absl::string_view what, const std::vector<ParameterOwner>& owners,
                     const std::vector<Future<T>>& calls) {
  std::vector<typename Future<T>::Result> results;
  for (const Future<T>& call : calls) results.push_back(call.result());
  std::size_t failed = 0;
  const ParameterOwner* first = nullptr;
  absl::Status status;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) continue;
    ++failed;
    if (first != nullptr) continue;
    first = &owners.at(i);
    if constexpr (std::is_void_v<T>) {
      status = results[i];
    } else {
      status = results[i].status();
    }
  }
  if (first != nullptr) owners_internal::throw_failure(status, what, *first, failed, results.size());
  if constexpr (!std::is_void_v<T>) {
    std::vector<T> values;
    for (auto& result : results) values.push_back(*std::move(result));
    return values;
  }
}

// Returns part `index` of an owner's answer. Throws Error, Internal, if the answer is too short.
template <class Parts>
auto& part_of(Parts& answer, std::size_t index, absl::string_view what, const ParameterOwner& owner) {
  if (index < answer.size()) return answer[index];
  throw Error(
      absl::InternalError(absl::StrCat(what, ": malformed answer of worker \"", owner.worker.name, "\": got ",
                                       answer.size(), " parts, expected at least ", index + 1)));
}

}  // namespace gradwire::autograd
