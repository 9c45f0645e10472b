#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/autograd/context.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/rref.h"
#include "gradwire/rpc/worker.h"

// Parameters by the worker that owns them, and rounds of calls to all of these.
namespace gradwire::autograd {

struct ContextState;

using ParameterRefs = std::vector<rpc::RRef<at::Tensor>>;

// The parameters of some groups that one worker owns.
struct ParameterOwner {
  // The parameters of group `number`, and which of the group's they are.
  struct Group {
    std::size_t number;
    ParameterRefs parameters;
    std::vector<std::size_t> positions;
  };

  rpc::WorkerInfo worker;
  // Those groups that have parameters there, ascending.
  std::vector<Group> groups;
};

// In the order in which the owners first appear. Throws Error, InvalidArgument, where a reference is empty.
std::vector<ParameterOwner> by_owner(absl::Span<const ParameterRefs> groups);

// A context that lives on `agent`. Throws Error, NotFound.
std::shared_ptr<ContextState> live_context(const rpc::Agent& agent, const ContextRef& context);
// Makes sure that these owners are notified of the context's end even if no message of it reaches them.
void tell_of_end(const rpc::Agent& agent, const rpc::Id& context, const std::vector<ParameterOwner>& owners);

namespace owners_internal {
// Puts what failed, where, and how many others did not fail before the message.
[[noreturn]] void throw_failure(const absl::Status& status, absl::string_view what,
                                const ParameterOwner& owner, std::size_t failed, std::size_t all);
}  // namespace owners_internal

// Waits for the call to each owner, one future for each and in their order, then throws the first error: no
// call is under way any more then. `what` names the calls, as in "DistributedOptimizer<SGD>::step".
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

// Part `index` of what an owner answered. Throws Error, Internal, where the answer is too short.
template <class Parts>
auto& part_of(Parts& answer, std::size_t index, absl::string_view what, const ParameterOwner& owner) {
  if (index < answer.size()) return answer[index];
  throw Error(absl::InternalError(absl::StrCat(what, ": the answer of worker \"", owner.worker.name,
                                               "\" has ", answer.size(), " parts, one more was looked for")));
}

}  // namespace gradwire::autograd
