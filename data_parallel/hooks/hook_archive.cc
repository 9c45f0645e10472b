#include "gradwire/data_parallel/hooks/hook_archive.h"

#include <ATen/ops/full.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {

void write_number(torch::serialize::OutputArchive& archive, const std::string& key, int64_t number) {
  write_tensor(archive, key, at::full({}, number, at::kLong));
}

int64_t read_number(torch::serialize::InputArchive& archive, const std::string& key, int64_t least,
                    int64_t most) {
  const at::Tensor tensor = read_tensor(archive, key);
  if (tensor.numel() != 1 || tensor.scalar_type() != at::kLong) {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("the entry \"", key, "\" of the archive is not a number")));
  }
  const int64_t number = tensor.item<int64_t>();
  if (number < least || number > most) {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("the entry \"", key, "\" of the archive is ", number,
                                                ", expected at least ", least, " and at most ", most)));
  }
  return number;
}

void write_tensor(torch::serialize::OutputArchive& archive, const std::string& key,
                  const at::Tensor& tensor) {
  archive.write(key, tensor.cpu(), /*is_buffer=*/true);
}

at::Tensor read_tensor(torch::serialize::InputArchive& archive, const std::string& key) {
  at::Tensor tensor;
  if (!archive.try_read(key, tensor, /*is_buffer=*/true)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("the archive has no entry \"", key, "\"")));
  }
  return tensor;
}

}  // namespace gradwire::data_parallel
