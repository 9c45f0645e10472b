#include "gradwire/rpc/torch/operator_call.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/callee/callee_cost.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/torch/operator_allow_list.h"
#include "gradwire/rpc/torch/torch_call.h"

namespace gradwire::rpc {
namespace {

using Operator = torch::jit::Operator;
using Overloads = std::vector<std::shared_ptr<Operator>>;

// Writes its result into an argument, which nobody here would see.
bool has_out_argument(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) return true;
  }
  return false;
}

// An operator that may be called: its overloads in TorchScript's order, which is that of their registration.
struct Entry {
  Overloads overloads;
  CalleeCost cost;
};

// Whether libtorch has such an operator, with any overload. Does not intern the name, since anybody can make
// up names; slow, so for errors alone.
bool exists(const std::string& callee) {
  const std::string base = callee.substr(0, callee.find('.'));
  for (const std::shared_ptr<Operator>& candidate : torch::jit::getAllOperators()) {
    if (candidate->schema().name() == base) return true;
  }
  return false;
}

// nullptr for one that may not. Looked up once for each name, with or without an overload: the list of
// allowed names and their overloads bound the table.
Entry* entry_of(const std::string& callee) {
  static auto* const mutex = new Mutex;
  static auto* const table = new absl::flat_hash_map<std::string, std::unique_ptr<Entry>>;
  {
    MutexLock lock(*mutex);
    if (auto found = table->find(callee); found != table->end()) return found->second.get();
  }
  const std::size_t dot = callee.find('.');
  const std::string base = callee.substr(0, dot);
  if (!is_allowed_operator(base)) return nullptr;
  auto entry = std::make_unique<Entry>();
  for (const auto& candidate : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(base))) {
    // Others are the interpreter's own, for numbers and lists.
    if (!candidate->isC10Op() || has_out_argument(candidate->schema())) continue;
    if (dot == std::string::npos || candidate->schema().overload_name() == callee.substr(dot + 1)) {
      entry->overloads.push_back(candidate);
    }
  }
  if (entry->overloads.empty()) {
    // Not kept: anybody can make up names.
    static auto* const none = new Entry;
    return none;
  }
  MutexLock lock(*mutex);
  return table->try_emplace(callee, std::move(entry)).first->second.get();
}

CalleeCost* cost_of(const std::string& callee) {
  Entry* const entry = entry_of(callee);
  return entry == nullptr ? nullptr : &entry->cost;
}

struct Match {
  const Operator* op = nullptr;
  std::vector<c10::IValue> stack;
};

absl::StatusOr<Match> find_match(const std::string& callee, const Overloads& overloads,
                                 const CallArguments& arguments) {
  for (Conversions conversions : {Conversions::kNone, Conversions::kImplicit}) {
    for (const auto& overload : overloads) {
      auto stack = match_arguments(overload->schema(), arguments, conversions);
      if (stack.ok()) return Match{overload.get(), *std::move(stack)};
    }
  }
  std::vector<std::string> reasons;
  for (const auto& overload : overloads) {
    const auto stack = match_arguments(overload->schema(), arguments, Conversions::kImplicit);
    reasons.push_back(absl::StrCat("  ", toString(overload->schema()), ": ", stack.status().message()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no overload of \"", callee, "\" takes these arguments:\n", absl::StrJoin(reasons, "\n")));
}

absl::StatusOr<Match> resolve(const ServerCall& call) {
  const std::string& callee = call.callee();
  const Entry* const entry = entry_of(callee);
  if (entry == nullptr) {
    if (!exists(callee)) {
      return absl::NotFoundError(
          absl::StrCat("no operator \"", callee,
                       "\" in the worker's libtorch: is its name spelled with its namespace, "
                       "as \"aten::add\"?"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("the operator \"", callee, "\" is not among those that a worker runs for others"));
  }
  if (entry->overloads.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the operator \"", callee, "\" has no such overload without out= arguments"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(CallArguments arguments, torch_arguments(call));
  return find_match(callee, entry->overloads, arguments);
}

[[maybe_unused]] const bool installed = [] {
  set_operator_handler(&serve_operator, &cost_of);
  return true;
}();

}  // namespace

void serve_operator(const std::shared_ptr<ServerCall>& call) {
  try {
    absl::StatusOr<Match> match = resolve(*call);
    if (!match.ok()) {
      call->fail(match.status());
      return;
    }
    // The stack and what it leaves are the only handles here: results travel without being copied.
    std::vector<c10::IValue> stack = std::move(match->stack);
    match->op->getOperation()(stack);
    finish_torch_call(*call, std::move(stack));
  } catch (...) {
    call->fail(with_context(status_from_exception(std::current_exception()),
                            absl::StrCat("\"", call->callee(), "\"")));
  }
}

}  // namespace gradwire::rpc
