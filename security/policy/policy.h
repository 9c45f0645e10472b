#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::security {

// Whether `name` fits the pattern, in which '*' stands for any number of any characters. Takes at most as
// many steps as the product of both lengths.
bool matches(absl::string_view pattern, absl::string_view name);

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

// The answer of a policy.
struct Decision {
  bool allowed = false;
  // The line that allows or denies it; 0: no line fits, and no line says what then happens.
  int line = 0;
};

// The rules of a policy that are for one caller, or for several callers with the same rules. Immutable and
// thread-safe.
//
// The order of the lines has no meaning. A rule that denies wins over all that allow, so a deny line holds,
// whatever else the file says, and a rule that is added at the end of a long file cannot open what another
// one has closed. Without a rule that fits, the default line decides; without that, the answer is no.
class CallerRules {
 public:
  Decision check(const Subject& subject) const;

 private:
  friend class Policy;

  // The first lines that deny and allow something; 0: none.
  struct Lines {
    int deny = 0;
    int allow = 0;
  };
  struct Pattern {
    std::string pattern;
    int line = 0;
  };
  // The rules of one kind.
  struct OfKind {
    // The rules for all names.
    Lines all;
    HashMap<std::string, Lines> exact;
    // In ascending order of their lines.
    std::vector<Pattern> deny;
    std::vector<Pattern> allow;
  };

  void add(const Rule& rule);
  static void add(const std::string& name, const Rule& rule, OfKind& to);

  std::array<OfKind, kCalleeClasses> kinds_;
  Decision otherwise_;
};

// The rules that say which worker may call what (docs/security.md). Immutable and thread-safe.
//
//   auto policy = Policy::parse("allow trainer* function ps::push, ps::pull\n", "policy.txt");
//   (*policy)->check("trainer0", {CalleeClass::kFunction, "ps::push"}).allowed  // true
class Policy {
 public:
  // InvalidArgument, as parse_policy().
  static absl::StatusOr<std::shared_ptr<const Policy>> parse(absl::string_view text,
                                                             absl::string_view source);

  // Slow: for many questions use rules_of(), or a DecisionCache.
  Decision check(absl::string_view caller, const Subject& subject) const;

  // The rules that fit this caller, each by its index in the policy. Callers with the same result have the
  // same CallerRules.
  std::vector<uint32_t> fitting(absl::string_view caller) const;
  std::shared_ptr<const CallerRules> compile(const std::vector<uint32_t>& fitting) const;

 private:
  explicit Policy(Rules rules) : rules_(std::move(rules)) {}

  const Rules rules_;
};

using PolicyPtr = std::shared_ptr<const Policy>;

}  // namespace gradwire::security
