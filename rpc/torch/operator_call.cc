#include "gradwire/rpc/torch/operator_call.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/torch/operator_allow_list.h"
#include "gradwire/rpc/torch/torch_call.h"

namespace gradwire::rpc {
namespace {

using Operator = torch::jit::Operator;
using Overloads = std::vector<std::shared_ptr<Operator>>;

// Whether the overload writes its result into an argument. Nobody would see that result here.
bool has_out_argument(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) return true;
  }
  return false;
}

// An operator that may be called. Its overloads are in the order of their registration, as in TorchScript.
struct Entry {
  Overloads overloads;
  CalleeCost cost;
};

// Whether libtorch has an operator of this name, with any overload. Does not intern the name, because a peer
// can invent any number of names. That makes it slow, so it is used only for error messages.
bool exists(const std::string& callee) {
  const std::string base = callee.substr(0, callee.find('.'));
  for (const std::shared_ptr<Operator>& candidate : torch::jit::getAllOperators()) {
    if (candidate->schema().name() == base) return true;
  }
  return false;
}

// Returns nullptr for an operator that may not be called, and an entry without overloads for an unknown
// overload. Each name, with or without an overload, is looked up once and then kept in a table. The number of
// allowed operators and of their overloads limits the size of the table.
Entry* entry_of(const std::string& callee) {
  static auto* const mutex = new ProcessMutex;
  static auto* const table = new HashMap<std::string, std::unique_ptr<Entry>>;
  {
    MutexLock lock(*mutex);
    if (auto found = table->find(callee); found != table->end()) return found->second.get();
  }
  const std::size_t dot = callee.find('.');
  const std::string base = callee.substr(0, dot);
  if (!is_allowed_operator(base)) return nullptr;
  auto entry = std::make_unique<Entry>();
  for (const auto& candidate : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(base))) {
    // Operators that are not C10 operators belong to the interpreter, for numbers and lists.
    if (!candidate->isC10Op() || has_out_argument(candidate->schema())) continue;
    if (dot == std::string::npos || candidate->schema().overload_name() == callee.substr(dot + 1)) {
      entry->overloads.push_back(candidate);
    }
  }
  if (entry->overloads.empty()) {
    // Not kept in the table, because a peer can invent any number of names.
    static auto* const none = new Entry;
    return none;
  }
  // Another thread may have been faster. Then try_emplace() keeps its entry, which callers may use already.
  MutexLock lock(*mutex);
  return table->try_emplace(callee, std::move(entry)).first->second.get();
}

CalleeCost* cost_of(const std::string& callee) {
  Entry* const entry = entry_of(callee);
  return entry == nullptr ? nullptr : &entry->cost;
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (absl::string_view name : allowed_operators()) names.push_back(absl::StrCat("aten::", name));
  return names;
}

struct Match {
  const Operator* op = nullptr;
  std::vector<c10::IValue> stack;
};

absl::StatusOr<Match> find_match(const std::string& callee, const Overloads& overloads,
                                 const CallArguments& arguments) {
  // Two rounds, so that an overload that takes the arguments as they are wins over an earlier one that would
  // convert them.
  for (Conversions conversions : {Conversions::kNone, Conversions::kImplicit}) {
    for (const auto& overload : overloads) {
      auto stack = match_arguments(overload->schema(), arguments, conversions);
      if (stack.ok()) return Match{overload.get(), *std::move(stack)};
    }
  }
  std::vector<std::string> reasons;
  for (const auto& overload : overloads) {
    // No overload matches. Match again for the reasons: most calls succeed, so they are not collected above.
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
          absl::StrCat("operator \"", callee,
                       "\" not found in the worker's libtorch: write its name with the namespace, as in "
                       "\"aten::add\""));
    }
    return absl::PermissionDeniedError(absl::StrCat(
        "operator \"", callee, "\" is not on the list of operators that other workers may call"));
  }
  if (entry->overloads.empty()) {
    return absl::NotFoundError(
        absl::StrCat("operator \"", callee, "\": unknown overload, or an overload with out= arguments"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(CallArguments arguments, torch_arguments(call));
  return find_match(callee, entry->overloads, arguments);
}

[[maybe_unused]] const bool installed = [] {
  set_operator_handler(&serve_operator, &cost_of, &names);
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
    // The stack holds the only handles of the results, so that they are sent without a copy.
    std::vector<c10::IValue> stack = std::move(match->stack);
    match->op->getOperation()(stack);
    finish_torch_call(*call, std::move(stack));
  } catch (...) {
    call->fail(caught(absl::StrCat("\"", call->callee(), "\"")));
  }
}

}  // namespace gradwire::rpc
