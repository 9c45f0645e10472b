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
  // The samples first, first + step, ...: the share of one worker.
  Samples share(int64_t first, int64_t step) const;
};

struct Dataset {
  Samples train;
  Samples held_out;
  int64_t features = 0;
  int64_t classes = 10;
};

// Loads the digits of examples/data, which are compiled in. Every fifth image is held out.
Dataset load_digits();
// Loads MNIST's four IDX files from `directory`. Throws c10::Error if they cannot be read.
Dataset load_mnist(const std::string& directory);
// Loads MNIST from `directory`, or the digits if the name is empty.
Dataset load_dataset(const std::string& directory);

// The fraction of `labels` (int64 [n]) that have the highest of `scores` (float [n, classes]).
double accuracy(const at::Tensor& scores, const at::Tensor& labels);

}  // namespace gradwire::examples
