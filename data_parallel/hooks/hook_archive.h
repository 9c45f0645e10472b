#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace gradwire::data_parallel {

// Reads and writes the states of hooks. An archive comes from a file, so numbers are checked when they are
// read.

void write_number(torch::serialize::OutputArchive& archive, const std::string& key, int64_t number);
// Throws Error with InvalidArgument if the archive does not have the key, or the number is not in
// [least, most].
int64_t read_number(torch::serialize::InputArchive& archive, const std::string& key, int64_t least = 0,
                    int64_t most = std::numeric_limits<int64_t>::max());

void write_tensor(torch::serialize::OutputArchive& archive, const std::string& key, const at::Tensor& tensor);
// Throws Error with InvalidArgument if the archive does not have the key.
at::Tensor read_tensor(torch::serialize::InputArchive& archive, const std::string& key);

}  // namespace gradwire::data_parallel
