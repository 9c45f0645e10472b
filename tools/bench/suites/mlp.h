#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::optim {
class SGD;
}

// The model of the case mlp_2: a perceptron of two layers, of a size as for recognising digits. Each of two
// workers has one layer.
namespace gradwire::bench {

inline constexpr int64_t kMlpBatch = 64;
inline constexpr int64_t kMlpInputs = 784;
inline constexpr int64_t kMlpHidden = 512;
inline constexpr int64_t kMlpClasses = 10;
inline constexpr double kMlpLearningRate = 0.05;

// One layer of the model. Layer 0: kMlpInputs to kMlpHidden, with a ReLU. Layer 1: kMlpHidden to kMlpClasses.
// The parameters are floats, initially the same in every process.
class MlpLayer {
 public:
  // Throws std::invalid_argument unless `layer` is 0 or 1.
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
// Mean cross entropy of logits, [kMlpBatch, kMlpClasses], against fixed labels.
at::Tensor mlp_loss(const at::Tensor& logits);

// The whole model in this process, trained by libtorch. The losses of the distributed steps are compared with
// it.
class LocalMlp {
 public:
  LocalMlp();
  ~LocalMlp();
  // Trains one step and returns the loss before the step.
  float step();

 private:
  MlpLayer first_, second_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  at::Tensor images_;
};

// Checks the losses of a training from its first step on.
class MlpCheck {
 public:
  // Checks the loss of the next step. In the first steps it must be that of the local model; later it must
  // not be larger than that of the first step. Otherwise throws std::runtime_error.
  void next(float loss);

 private:
  LocalMlp local_;
  int steps_ = 0;
  float first_ = 0;
};

}  // namespace gradwire::bench
