#include "gradwire/tools/bench/suites/case_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace gradwire::bench {

CaseName parse_case(absl::string_view name) {
  CaseName result{.operation = std::string(name)};
  const std::size_t split = name.rfind('_');
  if (split == absl::string_view::npos) return result;
  absl::string_view digits = name.substr(split + 1);
  int64_t unit = 0;
  if (absl::ConsumeSuffix(&digits, "KiB")) {
    unit = 1 << 10;
  } else if (absl::ConsumeSuffix(&digits, "MiB")) {
    unit = 1 << 20;
  } else if (absl::ConsumeSuffix(&digits, "B")) {
    unit = 1;
  }
  int64_t number = 0;
  // Reject numbers above 2^20, so that the product with the unit cannot overflow.
  if (!absl::SimpleAtoi(digits, &number) || number <= 0 || number > (1 << 20)) return result;
  result.operation = std::string(name.substr(0, split));
  (unit == 0 ? result.count : result.bytes) = unit == 0 ? number : number * unit;
  return result;
}

}  // namespace gradwire::bench
