#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/policy/rule.h"

namespace gradwire::security {

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
    absl::flat_hash_map<std::string, Lines> exact;
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
