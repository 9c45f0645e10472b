#include "gradwire/rpc/registry/registry.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {
namespace {

constinit ServeHandler installed_operator_handler = nullptr;
constinit ServeHandler installed_script_handler = nullptr;
constinit OperatorCost installed_operator_cost = nullptr;
constinit OperatorNames installed_operator_names = nullptr;

absl::string_view kind_name(CalleeKind kind) {
  switch (kind) {
    case CalleeKind::kFunction:
      return "function";
    case CalleeKind::kMethod:
      return "method";
    case CalleeKind::kConstructor:
      return "class";
  }
  return "callee";
}

// Advice where to find the registration of a libtorch module. Empty for other callees.
std::string stock_module_advice(CalleeKind kind, absl::string_view name) {
  if (kind != CalleeKind::kConstructor || !absl::StartsWith(name, "torch::nn::")) return "";
  return "include \"gradwire/rpc/stock_modules.h\" and link //rpc:stock_modules, which has libtorch's common "
         "modules; "
         "if this is "
         "not one of them, ";
}

// The error of a caller that has not registered its callee. `registration`: what to write.
absl::Status not_registered(CalleeKind kind, absl::string_view name, absl::string_view registration) {
  return absl::NotFoundError(
      absl::StrCat("\"", name, "\" is not registered in this program: ", stock_module_advice(kind, name),
                   "put ", registration, " into its library and link that with alwayslink"));
}

absl::string_view last_part(absl::string_view name) {
  const std::size_t colon = name.rfind(':');
  return colon == absl::string_view::npos ? name : name.substr(colon + 1);
}

}  // namespace

struct Registry::Tables {
  // One table for each CalleeKind.
  std::array<HashMap<std::string, std::unique_ptr<Callee>>, 3> callees;
  std::vector<std::string> conflicts;
};

Registry::Registry() : tables_(std::make_unique<Tables>()) {}
Registry::~Registry() = default;

Registry& Registry::instance() {
  // Never destroyed: a handler may still search for a callee during static destruction.
  static Registry* registry = new Registry;
  return *registry;
}

// Called during static initialisation, where no error can be reported. The first registration of a name
// stays, and AgentImpl::start() fails with conflicts(). The same registration may come twice, for example
// from a header that two libraries include.
const Callee* Registry::add(Callee callee) {
  MutexLock lock(mutex_);
  auto [entry, inserted] =
      tables_->callees[static_cast<std::size_t>(callee.kind)].try_emplace(callee.name, nullptr);
  if (inserted) {
    callee.signature_hash = stable_hash(callee.signature);
    callee.cost = new CalleeCost;
    entry->second = std::make_unique<Callee>(std::move(callee));
  } else if (entry->second->serve != callee.serve || entry->second->idempotent != callee.idempotent) {
    tables_->conflicts.push_back(absl::StrCat(kind_name(callee.kind), " ", callee.name));
  }
  return entry->second.get();
}

const Callee* Registry::find(CalleeKind kind, absl::string_view name) const {
  MutexLock lock(mutex_);
  const auto& callees = tables_->callees[static_cast<std::size_t>(kind)];
  auto found = callees.find(name);
  return found == callees.end() ? nullptr : found->second.get();
}

std::vector<const Callee*> Registry::all(CalleeKind kind, absl::string_view prefix) const {
  std::vector<const Callee*> found;
  MutexLock lock(mutex_);
  for (const auto& [name, callee] : tables_->callees[static_cast<std::size_t>(kind)]) {
    if (absl::StartsWith(name, prefix)) found.push_back(callee.get());
  }
  return found;
}

absl::Status Registry::conflicts() const {
  MutexLock lock(mutex_);
  if (tables_->conflicts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "registered twice with different functions, or once as idempotent and once not: ",
      absl::StrJoin(tables_->conflicts, ", "), "; give one of them another name with GRADWIRE_RPC_AS"));
}

absl::Status Registry::unknown(CalleeKind kind, absl::string_view name) const {
  std::vector<std::string> similar;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, callee] : tables_->callees[static_cast<std::size_t>(kind)]) {
      // The usual mistake is a missing or different namespace, so the last part of the name is compared.
      if (last_part(callee->name) == last_part(name)) similar.push_back(callee->name);
    }
  }
  std::sort(similar.begin(), similar.end());
  return absl::NotFoundError(absl::StrCat(
      kind_name(kind), " \"", name, "\" is not registered on this worker",
      similar.empty() ? std::string() : absl::StrCat(" (registered: ", absl::StrJoin(similar, ", "), ")"),
      ": ", stock_module_advice(kind, name),
      "is the library that registers it linked into this program, and linked with alwayslink?"));
}

absl::Status Registry::unregistered(CalleeKind kind, absl::string_view name) {
  std::string registration;
  switch (kind) {
    case CalleeKind::kFunction:
      registration = absl::StrCat("GRADWIRE_RPC(", name, ")");
      break;
    case CalleeKind::kMethod: {
      const std::size_t colons = name.rfind("::");
      registration = colons == absl::string_view::npos
                         ? absl::StrCat("GRADWIRE_RPC_METHOD(..., ", name, ")")
                         : absl::StrCat("GRADWIRE_RPC_METHOD(", name.substr(0, colons), ", ",
                                        name.substr(colons + 2), ")");
      break;
    }
    case CalleeKind::kConstructor:
      registration = absl::StrCat("GRADWIRE_RPC_CLASS(", name, ", ...)");
      break;
  }
  return not_registered(kind, name, registration);
}

absl::Status Registry::unregistered_module(absl::string_view type) {
  return not_registered(CalleeKind::kConstructor, type, absl::StrCat("GRADWIRE_RPC_MODULE(", type, ", ...)"));
}

void set_operator_handler(ServeHandler handler, OperatorCost cost, OperatorNames names) {
  installed_operator_handler = handler;
  installed_operator_cost = cost;
  installed_operator_names = names;
}
CalleeCost* operator_cost(const std::string& name) {
  return installed_operator_cost == nullptr ? nullptr : installed_operator_cost(name);
}
std::vector<std::string> operator_names() {
  return installed_operator_names == nullptr ? std::vector<std::string>() : installed_operator_names();
}
void set_script_handler(ServeHandler handler) { installed_script_handler = handler; }
ServeHandler operator_handler() { return installed_operator_handler; }
ServeHandler script_handler() { return installed_script_handler; }

}  // namespace gradwire::rpc
