#include "gradwire/rpc/script.h"

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/torch/script_calls.h"
#include "gradwire/rpc/torch/torch_call.h"

namespace gradwire::rpc {
namespace {

struct ScriptFunction {
  torch::jit::Function* function = nullptr;
  // For a method, its module. It is passed as the first argument.
  std::optional<c10::IValue> self;
};

struct Package {
  // Owns the functions. Is nullptr for a module: `self` then owns the methods.
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  std::map<std::string, ScriptFunction> functions;
};

class Scripts {
 public:
  static Scripts& instance() {
    static auto* const scripts = new Scripts;
    return *scripts;
  }

  void add(const std::string& name, Package package) {
    for (absl::string_view part : absl::StrSplit(name, '.')) {
      if (part.empty()) {
        throw Error(absl::InvalidArgumentError(
            absl::StrCat("invalid name of a TorchScript package: got \"", name,
                         "\", expected names joined by dots, without empty parts")));
      }
    }
    auto entry = std::make_shared<const Package>(std::move(package));
    MutexLock lock(mutex_);
    if (!packages_.try_emplace(name, std::move(entry)).second) {
      throw Error(absl::FailedPreconditionError(
          absl::StrCat("TorchScript package \"", name, "\" is registered already")));
    }
  }

  // Shares the package, so that the function lives while it runs.
  struct Found {
    std::shared_ptr<const Package> package;
    const ScriptFunction* function = nullptr;
  };

  absl::StatusOr<Found> find(const std::string& name) const {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("invalid name of a TorchScript function: got \"", name,
                                                     "\", expected \"package.function\""));
    }
    const std::string package_name = name.substr(0, dot);
    std::shared_ptr<const Package> package;
    {
      MutexLock lock(mutex_);
      auto found = packages_.find(package_name);
      if (found == packages_.end()) {
        std::vector<std::string> names;
        for (const auto& [known, unused] : packages_) names.push_back(known);
        return absl::NotFoundError(
            absl::StrCat("TorchScript package \"", package_name,
                         "\" is not registered; the registered packages are: ", absl::StrJoin(names, ", ")));
      }
      package = found->second;
    }
    auto found = package->functions.find(name.substr(dot + 1));
    if (found == package->functions.end()) {
      std::vector<std::string> names;
      for (const auto& [known, unused] : package->functions) names.push_back(known);
      return absl::NotFoundError(absl::StrCat("TorchScript function \"", name,
                                              "\" is not registered; the functions of \"", package_name,
                                              "\" are: ", absl::StrJoin(names, ", ")));
    }
    return Found{std::move(package), &found->second};
  }

 private:
  mutable ProcessMutex mutex_;
  std::map<std::string, std::shared_ptr<const Package>> packages_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<c10::IValue>> prepare(const ServerCall& call, const ScriptFunction& function) {
  GRADWIRE_ASSIGN_OR_RETURN(CallArguments arguments, torch_arguments(call));
  if (function.self) arguments.positional.insert(arguments.positional.begin(), *function.self);
  const c10::FunctionSchema& schema = function.function->getSchema();
  auto stack = match_arguments(schema, arguments, Conversions::kNone);
  if (!stack.ok()) stack = match_arguments(schema, arguments, Conversions::kImplicit);
  if (!stack.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", call.callee(), "\": ", stack.status().message(),
                                                   "; its schema is ", toString(schema)));
  }
  return stack;
}

[[maybe_unused]] const bool installed = [] {
  set_script_handler(&serve_script);
  return true;
}();

}  // namespace

void register_script(const std::string& package, std::shared_ptr<torch::jit::CompilationUnit> unit) {
  Package entry;
  for (torch::jit::Function* function : unit->get_functions())
    entry.functions[function->name()] = {function, {}};
  entry.unit = std::move(unit);
  Scripts::instance().add(package, std::move(entry));
}

std::shared_ptr<torch::jit::CompilationUnit> register_script(const std::string& package,
                                                             const std::string& source) {
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  try {
    // With the package as prefix the functions have the names by which other workers call them.
    unit->define(c10::QualifiedName(package), source, script_calls_resolver(), nullptr);
  } catch (const std::exception& error) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the TorchScript of \"", package, "\" does not compile: ", error.what())));
  }
  register_script(package, unit);
  return unit;
}

void register_script_module(const std::string& name, const torch::jit::Module& module) {
  Package entry;
  for (const torch::jit::Method& method : module.get_methods()) {
    // The module's value owns the compiled methods.
    entry.functions[method.name()] = {&method.function(), module._ivalue()};
  }
  Scripts::instance().add(name, std::move(entry));
}

void serve_script(const std::shared_ptr<ServerCall>& call) {
  try {
    auto found = Scripts::instance().find(call->callee());
    if (!found.ok()) {
      call->fail(found.status());
      return;
    }
    auto stack = prepare(*call, *found->function);
    if (!stack.ok()) {
      call->fail(stack.status());
      return;
    }
    run_script(call, *found->function->function, *std::move(stack));
  } catch (...) {
    call->fail(caught(absl::StrCat("\"", call->callee(), "\"")));
  }
}

}  // namespace gradwire::rpc
