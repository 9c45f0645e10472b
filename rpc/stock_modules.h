#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <cstdint>
#include <vector>

#include "gradwire/rpc/constructor.h"
#include "gradwire/rpc/remote_module.h"

// Registers modules of libtorch for RemoteModule, with the constructor that takes plain values:
//   LinearImpl(in_features, out_features)               FlattenImpl()
//   Conv1dImpl, Conv2dImpl(in, out, kernel_size)         DropoutImpl(p)
//   EmbeddingImpl(num_embeddings, embedding_dim)         ReLUImpl(), GELUImpl(), TanhImpl(), SigmoidImpl()
//   LayerNormImpl(normalized_shape)                      SoftmaxImpl(dim)
//   LSTMImpl(input_size, hidden_size)
//
//   RemoteModule<torch::nn::LinearImpl> linear("worker1", 64, 10);
//
// For a module with other options, or a module whose forward is inherited (BatchNorm1dImpl) or a template,
// write a module class that contains it.
namespace gradwire::rpc {

// Expands MODULE(class, types of the constructor's arguments...) for each module.
#define GRADWIRE_STOCK_MODULES(MODULE)                     \
  MODULE(torch::nn::LinearImpl, int64_t, int64_t)          \
  MODULE(torch::nn::FlattenImpl)                           \
  MODULE(torch::nn::Conv1dImpl, int64_t, int64_t, int64_t) \
  MODULE(torch::nn::Conv2dImpl, int64_t, int64_t, int64_t) \
  MODULE(torch::nn::EmbeddingImpl, int64_t, int64_t)       \
  MODULE(torch::nn::LayerNormImpl, std::vector<int64_t>)   \
  MODULE(torch::nn::LSTMImpl, int64_t, int64_t)            \
  MODULE(torch::nn::DropoutImpl, double)                   \
  MODULE(torch::nn::ReLUImpl)                              \
  MODULE(torch::nn::GELUImpl)                              \
  MODULE(torch::nn::TanhImpl)                              \
  MODULE(torch::nn::SigmoidImpl)                           \
  MODULE(torch::nn::SoftmaxImpl, int64_t)

GRADWIRE_STOCK_MODULES(GRADWIRE_RPC_CONSTRUCTOR)

}  // namespace gradwire::rpc
