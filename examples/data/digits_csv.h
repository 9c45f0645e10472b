#pragma once

#include <string_view>

namespace gradwire::examples {

// The text of digits.csv.gz, uncompressed: lines of 65 numbers, separated by commas (README.md).
std::string_view digits_csv();

}  // namespace gradwire::examples
