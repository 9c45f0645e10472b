#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gradwire::examples {

// Images and their classes.
struct Samples {
  at::Tensor images;  // float32 [n, features], 0 to 1.
  at::Tensor labels;  // int64 [n].

  int64_t size() const;
  // The samples first, first + step, ...: every worker trains on a share of its own.
  Samples share(int64_t first, int64_t step) const;
};

struct Dataset {
  Samples train;
  Samples held_out;
  int64_t features = 0;
  int64_t classes = 10;
};

// The digits of examples/data, compiled in; every fifth image is held out.
Dataset load_digits();
// MNIST's four IDX files in `directory`. Throws c10::Error when they cannot be read.
Dataset load_mnist(const std::string& directory);
// The digits for an empty name.
Dataset load_dataset(const std::string& directory);

// The fraction of `labels` (int64 [n]) that `scores` (float [n, classes]) put first.
double accuracy(const at::Tensor& scores, const at::Tensor& labels);

}  // namespace gradwire::examples
