#include "gradwire/tests/diagnosis/guide.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gradwire::tests {
namespace {

constexpr char kGuide[] = "docs/observability.md";

// Whether the text is that of the pattern, in which <words> stand for any text.
bool matches(absl::string_view text, absl::string_view pattern) {
  std::vector<absl::string_view> fixed;
  while (true) {
    const std::size_t open = pattern.find('<');
    const std::size_t close = pattern.find('>', open);
    if (open == absl::string_view::npos || close == absl::string_view::npos) break;
    fixed.push_back(pattern.substr(0, open));
    pattern.remove_prefix(close + 1);
  }
  if (fixed.empty()) return text == pattern;
  if (!absl::ConsumePrefix(&text, fixed.front())) return false;
  for (std::size_t i = 1; i < fixed.size(); ++i) {
    const std::size_t at = text.find(fixed[i]);
    if (at == absl::string_view::npos) return false;
    text.remove_prefix(at + fixed[i].size());
  }
  return absl::EndsWith(text, pattern);
}

// The cell without the marks of Markdown for code.
std::string cell_text(absl::string_view cell) {
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(cell), {{"`", ""}});
}

}  // namespace

bool is_in_guide(const inspect::Finding& finding) {
  std::ifstream guide(kGuide);
  std::string line;
  while (std::getline(guide, line)) {
    // The cells: problem, kind, sentence, advice, with empty ones at both ends.
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() != 6 || cell_text(cells[2]) != inspect::name_of(finding.kind)) continue;
    if (matches(finding.title, cell_text(cells[3])) && matches(finding.advice, cell_text(cells[4]))) {
      return true;
    }
  }
  return false;
}

}  // namespace gradwire::tests
