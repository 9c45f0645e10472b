// Reads the input as a policy file (security/policy/policy_parser.h), and compares its answers with those of
// a slow reader that knows only the description of the format.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/security/policy/policy.h"
#include "gradwire/security/policy/policy_parser.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::security::CalleeClass;
using gradwire::security::Decision;
using gradwire::security::Policy;
using gradwire::security::PolicyPtr;
using gradwire::security::Subject;

bool fits(const std::string& pattern, std::size_t p, const std::string& name, std::size_t n) {
  if (p == pattern.size()) return n == name.size();
  if (pattern[p] != '*') return n < name.size() && pattern[p] == name[n] && fits(pattern, p + 1, name, n + 1);
  return fits(pattern, p + 1, name, n) || (n < name.size() && fits(pattern, p, name, n + 1));
}
// Without bound this would take exponential time for many stars.
bool is_simple(const std::string& pattern) { return std::count(pattern.begin(), pattern.end(), '*') <= 3; }

// The words of an accepted line; a comma is a word of its own, and a name in quotes begins with a quote.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  bool joins = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '#') break;
    if (c == '"') {
      std::string word = "\"";
      while (line[++i] != '"') {
        if (line[i] == '\\') ++i;
        word += line[i];
      }
      words.push_back(word);
      joins = false;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      joins = false;
    } else if (c == ',') {
      words.emplace_back(",");
      joins = false;
    } else {
      if (!joins) words.emplace_back();
      words.back() += c;
      joins = true;
    }
  }
  return words;
}

// Whether one of the patterns at `at` fits. Moves `at` behind the list. `simple` becomes false if a pattern
// is too hard.
bool list_fits(const std::vector<std::string>& words, std::size_t& at, const std::string& name,
               bool& simple) {
  bool found = false;
  while (true) {
    const std::string& word = words.at(at);
    const std::string pattern = word[0] == '"' ? word.substr(1) : word;
    simple = simple && is_simple(pattern);
    found = found || (simple && fits(pattern, 0, name, 0));
    if (++at == words.size() || words[at] != ",") return found;
    ++at;
  }
}

struct Expected {
  bool allowed = false;
  int line = 0;
  bool simple = true;
};

// For a subject without an owner.
Expected expected_of(const std::string& text, const std::string& caller, const std::string& kind,
                     const std::string& name) {
  Expected expected;
  int deny = 0;
  int allow = 0;
  int number = 0;
  for (const absl::string_view view : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<std::string> words = words_of(std::string(view));
    if (words.empty()) continue;
    if (words[0] == "default") {
      expected.allowed = words[1] == "allow";
      expected.line = number;
      continue;
    }
    std::size_t at = 1;
    bool found = list_fits(words, at, caller, expected.simple);
    const std::string word = words.at(at++);
    if (word != "everything") found = list_fits(words, at, name, expected.simple) && found && word == kind;
    int& first = words[0] == "deny" ? deny : allow;
    if (found && first == 0) first = number;
  }
  if (deny != 0 || allow != 0) {
    expected.allowed = deny == 0;
    expected.line = deny != 0 ? deny : allow;
  }
  return expected;
}

void check_answers(const std::string& text, const PolicyPtr& policy) {
  for (const char* caller : {"a", "trainer0"}) {
    for (const CalleeClass kind : {CalleeClass::kFunction, CalleeClass::kClass, CalleeClass::kService}) {
      for (const char* name : {"f", "ps::push", "barrier", "f<int, long>"}) {
        const Expected expected =
            expected_of(text, caller, std::string(gradwire::security::word_for(kind)), name);
        if (!expected.simple) continue;
        const Decision got = policy->check(caller, Subject{kind, name});
        require(got.allowed == expected.allowed, "a wrong decision");
        require(got.line == expected.line, "the wrong line");
      }
    }
  }
}

// An error is "fuzz:LINE:COLUMN: ...", for the first line with a mistake.
void check_error(const std::string& text, const absl::Status& status) {
  require(absl::IsInvalidArgument(status), "an error that is not InvalidArgument");
  for (const char c : status.message())
    require(c >= ' ' && c <= '~', "an error with bytes that are not text");
  const std::vector<std::string> parts = absl::StrSplit(status.message(), absl::MaxSplits(':', 3));
  int line = 0;
  int column = 0;
  require(parts.size() == 4 && parts[0] == "fuzz" && absl::SimpleAtoi(parts[1], &line) &&
              absl::SimpleAtoi(parts[2], &column),
          "an error without line and column");
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  require(line >= 1 && static_cast<std::size_t>(line) <= lines.size(),
          "an error in a line that is not there");
  const std::string& wrong = lines[static_cast<std::size_t>(line - 1)];
  require(column >= 1 && static_cast<std::size_t>(column) <= wrong.size() + 1,
          "an error in a column that is not there");
  std::string before;
  for (int i = 0; i + 1 < line; ++i) absl::StrAppend(&before, lines[static_cast<std::size_t>(i)], "\n");
  require(Policy::parse(before, "fuzz").ok(), "an earlier line has a mistake, too");
  require(!Policy::parse(before + wrong, "fuzz").ok(), "the line has no mistake");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (size > 4096) return 0;
  const absl::StatusOr<PolicyPtr> policy = Policy::parse(text, "fuzz");
  if (policy.ok()) {
    check_answers(text, *policy);
    const absl::StatusOr<PolicyPtr> closed = Policy::parse(text + "\ndeny * everything", "fuzz");
    require(closed.ok() && !(*closed)->check("a", {CalleeClass::kFunction, "f"}).allowed,
            "a line that denies everything does not win");
  } else {
    check_error(text, policy.status());
  }
  return 0;
}
