#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::security {

// The kinds of things that a rule of a policy names.
enum class CalleeClass : uint8_t {
  // A registered C++ function.
  kFunction,
  // A registered class: its constructor and its methods.
  kClass,
  // An ATen operator, without its overload: "aten::add".
  kOperator,
  // A TorchScript function, "package.function".
  kScript,
  // Uses of references to the values of the worker (kReferenceActions).
  kReference,
  // Messages of the framework's layers (kServices).
  kService,
};
inline constexpr std::size_t kCalleeClasses = 6;

// The word for a kind in a policy: "function".
absl::string_view word_for(CalleeClass kind);

// The names of kReference. "hold": keep a value alive, as the creator of a reference or as the receiver of a
// reference that another worker passed on. "fetch": read the value. A worker may always give back a reference
// that it holds.
inline constexpr std::array<absl::string_view, 2> kReferenceActions = {"fetch", "hold"};
// The names of kService: autograd contexts and backward passes, barriers of workers, the list of callees, the
// state of the worker for observers, and tensors in the memory of another process.
inline constexpr std::array<absl::string_view, 5> kServices = {"autograd", "barrier", "callees", "inspect",
                                                               "ipc"};

// Limits of a policy.
inline constexpr std::size_t kMaxPolicyBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxRules = 10'000;
// The longest pattern, and the longest name that a rule can allow, in bytes.
inline constexpr std::size_t kMaxRuleName = 1024;

// A thing that a worker wants to use.
struct Subject {
  CalleeClass kind = CalleeClass::kFunction;
  absl::string_view name;
  // The class of a method. A rule for a class fits a method if its pattern fits `name` or `owner`.
  absl::string_view owner = {};
};

// One line of a policy.
struct Rule {
  // The first line has number 1.
  int line = 0;
  bool allows = false;
  // Patterns of the names of callers.
  std::vector<std::string> callers;
  // Whether it is for all kinds and names. Then the two members below are not used.
  bool everything = false;
  CalleeClass kind = CalleeClass::kFunction;
  std::vector<std::string> names;
};

// A parsed policy.
struct Rules {
  std::vector<Rule> rules;
  // The answer if no rule fits, and the line that says so; 0: no line does.
  bool allows_by_default = false;
  int default_line = 0;
};

}  // namespace gradwire::security
