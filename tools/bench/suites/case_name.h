#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::bench {

// "echo_64KiB" is the operation "echo" on 65536 bytes, "all_reduce_2_ranks_8B" that of two ranks on 8; "add2"
// is an operation without a size; "all_to_all_8" has the count 8.
struct CaseName {
  std::string operation;
  int64_t bytes = 0;
  int64_t count = 0;
};

CaseName parse_case(absl::string_view name);

}  // namespace gradwire::bench
