#include "gradwire/tools/bench/suites/case_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gradwire::bench {
namespace {

constexpr int64_t kColdIdleUs = 10'000;
constexpr int64_t kMaxComputeUs = 1'000'000;
constexpr int kMaxPerCore = 32;

// Parses a whole positive number. Returns 0 if `digits` is something else.
int64_t positive_number(absl::string_view digits) {
  int64_t number = 0;
  return absl::SimpleAtoi(digits, &number) && number > 0 ? number : 0;
}

// Parses "200us" or "2ms". Returns 0 if `text` is something else or longer than a second.
int64_t parse_interval(absl::string_view text) {
  int64_t unit = 0;
  if (absl::ConsumeSuffix(&text, "us")) {
    unit = 1;
  } else if (absl::ConsumeSuffix(&text, "ms")) {
    unit = 1000;
  }
  const int64_t number = positive_number(text);
  return unit == 0 || number > kMaxComputeUs / unit ? 0 : number * unit;
}

// Takes what the caller does between two calls off the end of `name`, and sets it in `result`.
void consume_gap(absl::string_view& name, CaseName& result) {
  if (absl::ConsumeSuffix(&name, "_cold")) {
    result.idle_us = kColdIdleUs;
    return;
  }
  absl::string_view rest = name;
  int64_t per_core = 1;
  if (absl::ConsumeSuffix(&rest, "_per_core")) {
    const std::size_t split = rest.rfind('_');
    if (split == absl::string_view::npos) return;
    per_core = positive_number(rest.substr(split + 1));
    rest = rest.substr(0, split);
  }
  constexpr absl::string_view kEvery = "_every_";
  const std::size_t every = rest.rfind(kEvery);
  if (every == absl::string_view::npos || per_core < 1 || per_core > kMaxPerCore) return;
  const int64_t interval = parse_interval(rest.substr(every + kEvery.size()));
  if (interval == 0) return;
  result.compute_us = interval;
  result.per_core = static_cast<int>(per_core);
  name = rest.substr(0, every);
}

}  // namespace

std::string CaseName::family() const {
  return absl::StrCat(operation, idle_us > 0 ? "_cold" : "", compute_us > 0 ? "_every" : "",
                      per_core > 1 ? "_per_core" : "");
}

CaseName parse_case(absl::string_view name) {
  CaseName result;
  consume_gap(name, result);
  result.operation = std::string(name);
  const std::size_t split = name.rfind('_');
  if (split == absl::string_view::npos) return result;
  absl::string_view digits = name.substr(split + 1);
  int64_t unit = 0;
  if (absl::ConsumeSuffix(&digits, "KiB")) {
    unit = 1 << 10;
  } else if (absl::ConsumeSuffix(&digits, "MiB")) {
    unit = 1 << 20;
  } else if (absl::ConsumeSuffix(&digits, "GiB")) {
    unit = 1 << 30;
  } else if (absl::ConsumeSuffix(&digits, "B")) {
    unit = 1;
  }
  const int64_t number = positive_number(digits);
  // Reject numbers above 2^20, so that the product with the unit cannot overflow.
  if (number == 0 || number > (1 << 20)) return result;
  result.operation = std::string(name.substr(0, split));
  (unit == 0 ? result.count : result.bytes) = unit == 0 ? number : number * unit;
  return result;
}

}  // namespace gradwire::bench
