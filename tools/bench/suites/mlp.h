#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::optim {
class SGD;
}

// The model of the case mlp_2: the perceptron that digits are recognised with, a layer on each of two
// workers.
namespace gradwire::bench {

inline constexpr int64_t kMlpBatch = 64;
inline constexpr int64_t kMlpInputs = 784;
inline constexpr int64_t kMlpHidden = 512;
inline constexpr int64_t kMlpClasses = 10;
inline constexpr double kMlpLearningRate = 0.05;

// Layer 0: kMlpInputs to kMlpHidden, with a ReLU; layer 1: kMlpHidden to kMlpClasses. Floats; the same
// wherever it is made.
class MlpLayer {
 public:
  // Throws std::invalid_argument for other layers.
  explicit MlpLayer(int64_t layer);
  // [batch, in] to [batch, out].
  at::Tensor forward(const at::Tensor& x) const;
  // Weight [out, in] and bias [out], leaves that require grad.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  bool rectified_;
  std::vector<at::Tensor> parameters_;
};

// Images, [kMlpBatch, kMlpInputs].
at::Tensor mlp_images();
// Mean cross entropy of logits, [kMlpBatch, kMlpClasses], against labels that are always the same.
at::Tensor mlp_loss(const at::Tensor& logits);

// The whole model here, trained by libtorch: what the distributed steps' losses are compared with.
class LocalMlp {
 public:
  LocalMlp();
  ~LocalMlp();
  // One step; the loss before it.
  float step();

 private:
  MlpLayer first_, second_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  at::Tensor images_;
};

// Follows a training from its first step on.
class MlpCheck {
 public:
  // Throws std::runtime_error when the loss of the next step is not the local model's, in the first steps, or
  // grows beyond the first one's, later on.
  void next(float loss);

 private:
  LocalMlp local_;
  int steps_ = 0;
  float first_ = 0;
};

}  // namespace gradwire::bench
