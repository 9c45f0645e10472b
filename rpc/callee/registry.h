#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/callee/server_call.h"

namespace gradwire::rpc {

class CalleeCost;

enum class CalleeKind { kFunction, kMethod, kConstructor };

// A C++ function, method or constructor that other workers may call.
struct Callee {
  CalleeKind kind = CalleeKind::kFunction;
  // The fully qualified name, the same for every compiler.
  std::string name;
  // The types as the wire knows them: "Tensor(Tensor,float64)".
  std::string signature;
  // The hash of `signature`, computed by Registry::add.
  uint64_t signature_hash = 0;
  // For a method: the name of the class whose objects it runs on. Empty otherwise.
  std::string object_type;
  // Running it again does no harm: its calls are made again when their connection breaks
  // (rpc/options.h).
  bool idempotent = false;
  // Decodes the arguments, runs it and finishes the call.
  void (*serve)(const std::shared_ptr<ServerCall>& call) = nullptr;
  // Never destroyed, as the callee itself once it is registered.
  CalleeCost* cost = nullptr;
};

// The functions that this program serves: filled by the GRADWIRE_RPC macros during static initialisation, one
// for the process because that is what registration by linking means. Thread-safe. Entries are never removed.
class Registry {
 public:
  static Registry& instance();

  // Registering the same callee again does nothing; a different one under a taken name is a conflict.
  const Callee* add(Callee callee);
  // nullptr when it is not registered.
  const Callee* find(CalleeKind kind, absl::string_view name) const;

  // InvalidArgument naming every name that two different callees claim; agents refuse to start then.
  absl::Status conflicts() const;

  // NotFound for `name`, with the likeliest reasons and names like it.
  absl::Status unknown(CalleeKind kind, absl::string_view name) const;

  // NotFound for a callee that this program calls and has not registered, with what to write.
  static absl::Status unregistered(CalleeKind kind, absl::string_view name);

 private:
  Registry() = default;
  mutable Mutex mutex_;
  using Callees = absl::flat_hash_map<std::string, std::unique_ptr<Callee>>;
  // One for each CalleeKind.
  std::array<Callees, 3> callees_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> conflicts_ ABSL_GUARDED_BY(mutex_);
};

// Serves requests for operators and for TorchScript functions: installed during static initialisation by the
// targets that know libtorch. nullptr while none is.
using ServeHandler = void (*)(const std::shared_ptr<ServerCall>& call);
// The cost of the operator of this name; nullptr when it may not be called.
using OperatorCost = CalleeCost* (*)(const std::string& name);
void set_operator_handler(ServeHandler handler, OperatorCost cost);
void set_script_handler(ServeHandler handler);
ServeHandler operator_handler();
CalleeCost* operator_cost(const std::string& name);
ServeHandler script_handler();

}  // namespace gradwire::rpc
