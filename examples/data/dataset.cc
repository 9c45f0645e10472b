#include "examples/data/dataset.h"

#include <ATen/ATen.h>
#include <torch/data/datasets/mnist.h>

#include <charconv>
#include <string_view>
#include <vector>

#include "examples/data/digits_csv.h"

namespace gradwire::examples {
namespace {

constexpr int64_t kPixels = 64;
constexpr float kFullPixel = 16.0F;
// Every fifth image is held out. The file is sorted by the writers of the digits, and each writer should be
// in both parts.
constexpr int64_t kHeldOutStep = 5;

Samples read_mnist(const std::string& directory, torch::data::datasets::MNIST::Mode mode) {
  torch::data::datasets::MNIST set(directory, mode);
  return {set.images().reshape({set.images().size(0), -1}).contiguous(), set.targets().to(at::kLong)};
}

}  // namespace

int64_t Samples::size() const { return labels.size(0); }

Samples Samples::share(int64_t first, int64_t step) const {
  return {images.slice(0, first, at::nullopt, step).contiguous(),
          labels.slice(0, first, at::nullopt, step).contiguous()};
}

Dataset load_digits() {
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  int64_t column = 0;
  const std::string_view csv = digits_csv();
  for (const char* at = csv.data(); at < csv.data() + csv.size(); ++at) {
    int value = 0;
    at = std::from_chars(at, csv.data() + csv.size(), value).ptr;
    if (column == kPixels) {
      labels.push_back(value);
      column = 0;
    } else {
      pixels.push_back(static_cast<float>(value) / kFullPixel);
      ++column;
    }
  }
  const int64_t count = static_cast<int64_t>(labels.size());
  at::Tensor images = at::tensor(pixels).reshape({count, kPixels});
  at::Tensor classes = at::tensor(labels, at::kLong);
  const at::Tensor held_out = at::arange(count).remainder(kHeldOutStep).eq(kHeldOutStep - 1);
  const at::Tensor train = held_out.logical_not();
  Dataset data;
  data.train = {images.index({train}), classes.index({train})};
  data.held_out = {images.index({held_out}), classes.index({held_out})};
  data.features = kPixels;
  return data;
}

Dataset load_mnist(const std::string& directory) {
  Dataset data;
  data.train = read_mnist(directory, torch::data::datasets::MNIST::Mode::kTrain);
  data.held_out = read_mnist(directory, torch::data::datasets::MNIST::Mode::kTest);
  data.features = data.train.images.size(1);
  return data;
}

Dataset load_dataset(const std::string& directory) {
  return directory.empty() ? load_digits() : load_mnist(directory);
}

double accuracy(const at::Tensor& scores, const at::Tensor& labels) {
  return scores.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
}

}  // namespace gradwire::examples
