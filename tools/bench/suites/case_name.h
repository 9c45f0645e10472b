#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::bench {

// The parts of a case's name. "echo_64KiB" is the operation "echo" with 65536 bytes; "all_reduce_2_ranks_8B"
// is the operation "all_reduce_2_ranks" with 8 bytes; "add2" is an operation without a size; "all_to_all_8"
// is the operation "all_to_all" with the count 8.
struct CaseName {
  std::string operation;
  int64_t bytes = 0;
  int64_t count = 0;
};

// A name without a valid size or count is an operation as a whole.
CaseName parse_case(absl::string_view name);

}  // namespace gradwire::bench
