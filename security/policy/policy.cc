#include "gradwire/security/policy/policy.h"

#include <algorithm>

#include "gradwire/security/policy/policy_parser.h"

namespace gradwire::security {

// The usual greedy matcher: after a mismatch the last '*' takes one character more. It needs no recursion.
bool matches(absl::string_view pattern, absl::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = absl::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::string_view word_for(CalleeClass kind) {
  switch (kind) {
    case CalleeClass::kFunction:
      return "function";
    case CalleeClass::kClass:
      return "class";
    case CalleeClass::kOperator:
      return "operator";
    case CalleeClass::kScript:
      return "script";
    case CalleeClass::kReference:
      return "reference";
    case CalleeClass::kService:
      return "service";
  }
  return "";
}

namespace {

bool is_pattern(absl::string_view name) { return name.find('*') != absl::string_view::npos; }

// Keeps the first line: rules are added in the order of their lines.
void keep_first(int& line, int other) {
  if (line == 0 || (other != 0 && other < line)) line = other;
}

}  // namespace

void CallerRules::add(const std::string& name, const Rule& rule, OfKind& to) {
  // A pattern of stars only.
  if (name.find_first_not_of('*') == std::string::npos) {
    keep_first(rule.allows ? to.all.allow : to.all.deny, rule.line);
  } else if (is_pattern(name)) {
    (rule.allows ? to.allow : to.deny).push_back({name, rule.line});
  } else {
    Lines& lines = to.exact[name];
    keep_first(rule.allows ? lines.allow : lines.deny, rule.line);
  }
}

void CallerRules::add(const Rule& rule) {
  if (rule.everything) {
    for (OfKind& kind : kinds_) add("*", rule, kind);
    return;
  }
  for (const std::string& name : rule.names) add(name, rule, kinds_[static_cast<std::size_t>(rule.kind)]);
}

Decision CallerRules::check(const Subject& subject) const {
  if (subject.name.size() > kMaxRuleName || subject.owner.size() > kMaxRuleName) return {false, 0};
  const OfKind& rules = kinds_[static_cast<std::size_t>(subject.kind)];
  Lines found = rules.all;
  const auto look_up = [&](absl::string_view name) {
    if (name.empty()) return;
    if (auto exact = rules.exact.find(name); exact != rules.exact.end()) {
      keep_first(found.deny, exact->second.deny);
      keep_first(found.allow, exact->second.allow);
    }
  };
  look_up(subject.name);
  look_up(subject.owner);
  const auto first_fit = [&](const std::vector<Pattern>& patterns, int& line) {
    for (const Pattern& each : patterns) {
      if (line != 0 && each.line >= line) return;
      if (!matches(each.pattern, subject.name) &&
          (subject.owner.empty() || !matches(each.pattern, subject.owner)))
        continue;
      line = each.line;
      return;
    }
  };
  first_fit(rules.deny, found.deny);
  if (found.deny != 0) return {false, found.deny};
  first_fit(rules.allow, found.allow);
  return found.allow != 0 ? Decision{true, found.allow} : otherwise_;
}

absl::StatusOr<PolicyPtr> Policy::parse(absl::string_view text, absl::string_view source) {
  absl::StatusOr<Rules> rules = parse_policy(text, source);
  if (!rules.ok()) return rules.status();
  return PolicyPtr(new Policy(*std::move(rules)));
}

std::vector<uint32_t> Policy::fitting(absl::string_view caller) const {
  std::vector<uint32_t> fitting;
  for (std::size_t i = 0; i < rules_.rules.size(); ++i) {
    const std::vector<std::string>& callers = rules_.rules[i].callers;
    if (std::any_of(callers.begin(), callers.end(),
                    [caller](const std::string& pattern) { return matches(pattern, caller); }))
      fitting.push_back(static_cast<uint32_t>(i));
  }
  return fitting;
}

std::shared_ptr<const CallerRules> Policy::compile(const std::vector<uint32_t>& fitting) const {
  auto rules = std::make_shared<CallerRules>();
  rules->otherwise_ = {rules_.allows_by_default, rules_.default_line};
  for (uint32_t index : fitting) rules->add(rules_.rules[index]);
  return rules;
}

Decision Policy::check(absl::string_view caller, const Subject& subject) const {
  return compile(fitting(caller))->check(subject);
}

}  // namespace gradwire::security
