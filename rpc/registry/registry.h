#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {

class CalleeCost;

enum class CalleeKind { kFunction, kMethod, kConstructor };

// A C++ function, method or constructor that other workers may call.
struct Callee {
  CalleeKind kind = CalleeKind::kFunction;
  // The fully qualified name, the same for every compiler.
  std::string name;
  // Parameter and result types by their names on the wire: "Tensor(Tensor,float64)".
  std::string signature;
  // The hash of `signature`, computed by Registry::add.
  uint64_t signature_hash = 0;
  // For a method and a constructor: the type of the object in references. Empty otherwise.
  std::string object_type;
  // Whether running it twice does no harm. Its calls are repeated when their connection breaks
  // (rpc/core/options.h).
  bool idempotent = false;
  // Decodes the arguments, runs the callee and finishes the call.
  void (*serve)(const std::shared_ptr<ServerCall>& call) = nullptr;
  // Never destroyed, like the callee itself once it is registered.
  CalleeCost* cost = nullptr;
};

// The C++ callees that this program serves. The GRADWIRE_RPC macros fill it during static initialisation.
// There is one registry per process, because registration happens by linking. Thread-safe. Entries are never
// removed.
class Registry {
 public:
  static Registry& instance();

  // Registers a callee. Registering the same callee again does nothing. A different callee with the same name
  // is a conflict.
  const Callee* add(Callee callee);
  // Returns nullptr if no such callee is registered.
  const Callee* find(CalleeKind kind, absl::string_view name) const;

  // Returns all callees of a kind whose name begins with `prefix`, in no order.
  std::vector<const Callee*> all(CalleeKind kind, absl::string_view prefix) const;

  // Returns InvalidArgument with every name that is registered for two different callees, else OK. An agent
  // does not start if there are conflicts.
  absl::Status conflicts() const;

  // The error for a request for an unknown callee: NotFound, with similar names and the likeliest causes.
  absl::Status unknown(CalleeKind kind, absl::string_view name) const;

  // The error of a caller that has not registered its callee: NotFound, with the registration to write.
  static absl::Status unregistered(CalleeKind kind, absl::string_view name);
  // The same of a caller that has not registered a class as a module (rpc/remote_module.h).
  static absl::Status unregistered_module(absl::string_view type);

 private:
  struct Tables;

  Registry();
  ~Registry();

  mutable ProcessMutex mutex_;
  const std::unique_ptr<Tables> tables_ ABSL_PT_GUARDED_BY(mutex_);
};

// Serves requests for operators or for TorchScript functions. The targets that use libtorch install the
// handlers during static initialisation; without those targets they are nullptr.
using ServeHandler = void (*)(const std::shared_ptr<ServerCall>& call);
// Returns the cost of the operator with this name; nullptr if it must not be called.
using OperatorCost = CalleeCost* (*)(const std::string& name);
// Returns the names of all operators that may be called, "aten::NAME", in ascending order.
using OperatorNames = std::vector<std::string> (*)();
void set_operator_handler(ServeHandler handler, OperatorCost cost, OperatorNames names);
void set_script_handler(ServeHandler handler);
ServeHandler operator_handler();
CalleeCost* operator_cost(const std::string& name);
// Empty if no handler is installed.
std::vector<std::string> operator_names();
ServeHandler script_handler();

}  // namespace gradwire::rpc
