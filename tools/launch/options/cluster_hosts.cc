// Expands Slurm's lists of hosts: "n[01-03,7]x,login" is n01x, n02x, n03x, n7x, login. The list comes from
// the environment, so every number is bounded before memory is allocated for it.

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/options/cluster.h"

namespace gradwire::tools {
namespace {

constexpr size_t kMaxHosts = 65536;
constexpr size_t kMaxDigits = 9;
constexpr size_t kMaxName = 255;

absl::Status not_a_list(absl::string_view part) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(part.substr(0, kMaxName)), "\" is not a list of hosts"));
}

bool is_number(absl::string_view text) {
  if (text.empty() || text.size() > kMaxDigits) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

// Expands "001-003,7" to 001, 002, 003, 7. The numbers of a range are as wide as its first number.
absl::StatusOr<std::vector<std::string>> expand_ranges(absl::string_view ranges) {
  std::vector<std::string> numbers;
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!is_number(ends.front()) || !is_number(ends.back()) || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first) {
      return not_a_list(range);
    }
    if (last - first >= kMaxHosts - numbers.size())
      return absl::InvalidArgumentError("the list has too many hosts");
    const int width = static_cast<int>(ends.front().size());
    for (uint32_t number = first; number <= last; ++number) {
      numbers.push_back(absl::StrFormat("%0*d", width, number));
    }
  }
  return numbers;
}

// Expands one name with its brackets. Each bracket multiplies the names so far by its numbers.
absl::StatusOr<std::vector<std::string>> expand_name(absl::string_view name) {
  const absl::string_view whole = name;
  std::vector<std::string> hosts = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    const absl::string_view plain = name.substr(0, open);
    for (char c : plain) {
      if (!absl::ascii_isgraph(c) || c == ']') return not_a_list(whole);
    }
    for (std::string& host : hosts) absl::StrAppend(&host, plain);
    if (open == absl::string_view::npos) break;
    const size_t close = name.find(']', open);
    if (close == absl::string_view::npos) return not_a_list(whole);
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                              expand_ranges(name.substr(open + 1, close - open - 1)));
    if (hosts.size() * numbers.size() > kMaxHosts)
      return absl::InvalidArgumentError("the list has too many hosts");
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_host_list(absl::string_view list) {
  constexpr size_t kMaxLength = size_t{1} << 20;
  if (list.size() > kMaxLength) return absl::InvalidArgumentError("the list has too many hosts");
  std::vector<std::string> all;
  while (true) {
    // A name ends at a comma outside of brackets.
    bool in_brackets = false;
    size_t end = 0;
    for (; end < list.size() && (in_brackets || list[end] != ','); ++end) {
      if (list[end] == '[') in_brackets = true;
      if (list[end] == ']') in_brackets = false;
    }
    if (end == 0 || end > size_t{16} * kMaxName) return not_a_list(list.substr(0, end));
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, expand_name(list.substr(0, end)));
    if (all.size() + hosts.size() > kMaxHosts)
      return absl::InvalidArgumentError("the list has too many hosts");
    all.insert(all.end(), hosts.begin(), hosts.end());
    if (end == list.size()) return all;
    list.remove_prefix(end + 1);
  }
}

}  // namespace gradwire::tools
