#pragma once

#include <string_view>

namespace gradwire::examples {

// The text of digits.csv.gz, uncompressed: lines of 65 numbers with commas between (README.md).
std::string_view digits_csv();

}  // namespace gradwire::examples
