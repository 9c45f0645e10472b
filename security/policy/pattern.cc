#include "gradwire/security/policy/pattern.h"

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

}  // namespace gradwire::security
