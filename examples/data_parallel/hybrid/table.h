#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace gradwire::examples {

// The large and sparse part of the model, which the server owns: a row of numbers for each word. A step, and
// its gradient, use only the rows of its words. Registered in table.cc.
struct TableImpl : torch::nn::Module {
  TableImpl(int64_t words, int64_t width);

  // int64 [n, k], words -> float [n, width], the sum of their rows
  at::Tensor forward(const at::Tensor& words);

  at::Tensor rows;
};

// Converts an image to words, int64 [n, features]: one word for each pixel, from its place and its shade.
// There are kShades shades.
inline constexpr int64_t kShades = 5;
at::Tensor words_of(const at::Tensor& images);

}  // namespace gradwire::examples
