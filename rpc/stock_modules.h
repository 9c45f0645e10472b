#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/modules/upsampling.h>

#include <optional>
#include <tuple>

#include "gradwire/rpc/modules/module_options.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/sequential.h"

// Registers the modules of libtorch below for RemoteModule, and as layers of a remote SequentialImpl. The
// constructor takes the module's options, or the arguments of the options' constructor:
//   RemoteModule<torch::nn::LinearImpl> linear("worker1", 64, 10);
//   RemoteModule<torch::nn::LinearImpl> without_bias("worker1", torch::nn::LinearOptions(64,
//   10).bias(false)); RemoteModule<torch::nn::LSTMImpl> lstm("worker1/cuda:0", torch::nn::LSTMOptions(64,
//   128).num_layers(2));
// The worker makes the module with new weights; load_state_dict() sets them. Options with a function or a
// module of this process, such as a custom activation or a custom encoder, are refused with InvalidArgument.
//
// For a module that is not here write a module class that contains it, and register it with
// GRADWIRE_RPC_MODULE.
namespace gradwire::rpc {

// Expands MODULE(class, types of the constructor's arguments...) for each module whose forward takes one
// tensor.
#define GRADWIRE_STOCK_LINEAR_MODULES(MODULE)                                   \
  MODULE(torch::nn::IdentityImpl)                                               \
  MODULE(torch::nn::LinearImpl, torch::nn::LinearOptions)                       \
  MODULE(torch::nn::FlattenImpl, torch::nn::FlattenOptions)                     \
  MODULE(torch::nn::Conv1dImpl, torch::nn::Conv1dOptions)                       \
  MODULE(torch::nn::Conv2dImpl, torch::nn::Conv2dOptions)                       \
  MODULE(torch::nn::Conv3dImpl, torch::nn::Conv3dOptions)                       \
  MODULE(torch::nn::EmbeddingImpl, torch::nn::EmbeddingOptions)                 \
  MODULE(torch::nn::LayerNormImpl, torch::nn::LayerNormOptions)                 \
  MODULE(torch::nn::GroupNormImpl, torch::nn::GroupNormOptions)                 \
  MODULE(torch::nn::LocalResponseNormImpl, torch::nn::LocalResponseNormOptions) \
  MODULE(torch::nn::BatchNorm1dImpl, torch::nn::BatchNormOptions)               \
  MODULE(torch::nn::BatchNorm2dImpl, torch::nn::BatchNormOptions)               \
  MODULE(torch::nn::BatchNorm3dImpl, torch::nn::BatchNormOptions)               \
  MODULE(torch::nn::InstanceNorm1dImpl, torch::nn::InstanceNormOptions)         \
  MODULE(torch::nn::InstanceNorm2dImpl, torch::nn::InstanceNormOptions)         \
  MODULE(torch::nn::InstanceNorm3dImpl, torch::nn::InstanceNormOptions)
// As above.
#define GRADWIRE_STOCK_ACTIVATIONS(MODULE)                        \
  MODULE(torch::nn::ELUImpl, torch::nn::ELUOptions)               \
  MODULE(torch::nn::SELUImpl, torch::nn::SELUOptions)             \
  MODULE(torch::nn::CELUImpl, torch::nn::CELUOptions)             \
  MODULE(torch::nn::GELUImpl, torch::nn::GELUOptions)             \
  MODULE(torch::nn::GLUImpl, torch::nn::GLUOptions)               \
  MODULE(torch::nn::ReLUImpl, torch::nn::ReLUOptions)             \
  MODULE(torch::nn::ReLU6Impl, torch::nn::ReLU6Options)           \
  MODULE(torch::nn::RReLUImpl, torch::nn::RReLUOptions)           \
  MODULE(torch::nn::PReLUImpl, torch::nn::PReLUOptions)           \
  MODULE(torch::nn::LeakyReLUImpl, torch::nn::LeakyReLUOptions)   \
  MODULE(torch::nn::HardshrinkImpl, torch::nn::HardshrinkOptions) \
  MODULE(torch::nn::HardtanhImpl, torch::nn::HardtanhOptions)     \
  MODULE(torch::nn::SoftplusImpl, torch::nn::SoftplusOptions)     \
  MODULE(torch::nn::SoftshrinkImpl, torch::nn::SoftshrinkOptions) \
  MODULE(torch::nn::ThresholdImpl, torch::nn::ThresholdOptions)   \
  MODULE(torch::nn::SoftmaxImpl, torch::nn::SoftmaxOptions)       \
  MODULE(torch::nn::SoftminImpl, torch::nn::SoftminOptions)       \
  MODULE(torch::nn::LogSoftmaxImpl, torch::nn::LogSoftmaxOptions) \
  MODULE(torch::nn::Softmax2dImpl)                                \
  MODULE(torch::nn::SigmoidImpl)                                  \
  MODULE(torch::nn::LogSigmoidImpl)                               \
  MODULE(torch::nn::TanhImpl)                                     \
  MODULE(torch::nn::TanhshrinkImpl)                               \
  MODULE(torch::nn::SiLUImpl)                                     \
  MODULE(torch::nn::MishImpl)                                     \
  MODULE(torch::nn::SoftsignImpl)
// As above.
#define GRADWIRE_STOCK_POOLING_MODULES(MODULE)                                  \
  MODULE(torch::nn::DropoutImpl, torch::nn::DropoutOptions)                     \
  MODULE(torch::nn::Dropout2dImpl, torch::nn::DropoutOptions)                   \
  MODULE(torch::nn::Dropout3dImpl, torch::nn::DropoutOptions)                   \
  MODULE(torch::nn::AlphaDropoutImpl, torch::nn::DropoutOptions)                \
  MODULE(torch::nn::FeatureAlphaDropoutImpl, torch::nn::DropoutOptions)         \
  MODULE(torch::nn::AvgPool1dImpl, torch::nn::AvgPool1dOptions)                 \
  MODULE(torch::nn::AvgPool2dImpl, torch::nn::AvgPool2dOptions)                 \
  MODULE(torch::nn::AvgPool3dImpl, torch::nn::AvgPool3dOptions)                 \
  MODULE(torch::nn::MaxPool1dImpl, torch::nn::MaxPool1dOptions)                 \
  MODULE(torch::nn::MaxPool2dImpl, torch::nn::MaxPool2dOptions)                 \
  MODULE(torch::nn::MaxPool3dImpl, torch::nn::MaxPool3dOptions)                 \
  MODULE(torch::nn::AdaptiveAvgPool1dImpl, torch::nn::AdaptiveAvgPool1dOptions) \
  MODULE(torch::nn::AdaptiveAvgPool2dImpl, torch::nn::AdaptiveAvgPool2dOptions) \
  MODULE(torch::nn::AdaptiveAvgPool3dImpl, torch::nn::AdaptiveAvgPool3dOptions) \
  MODULE(torch::nn::UpsampleImpl, torch::nn::UpsampleOptions)
// As above, for modules whose forward takes several tensors or returns a tuple. Those that take or return a
// tuple are not layers.
#define GRADWIRE_STOCK_SEQUENCE_MODULES(MODULE)                                             \
  MODULE(torch::nn::BilinearImpl, torch::nn::BilinearOptions)                               \
  MODULE(torch::nn::EmbeddingBagImpl, torch::nn::EmbeddingBagOptions)                       \
  MODULE(torch::nn::RNNImpl, torch::nn::RNNOptions)                                         \
  MODULE(torch::nn::LSTMImpl, torch::nn::LSTMOptions)                                       \
  MODULE(torch::nn::GRUImpl, torch::nn::GRUOptions)                                         \
  MODULE(torch::nn::RNNCellImpl, torch::nn::RNNCellOptions)                                 \
  MODULE(torch::nn::LSTMCellImpl, torch::nn::LSTMCellOptions)                               \
  MODULE(torch::nn::GRUCellImpl, torch::nn::GRUCellOptions)                                 \
  MODULE(torch::nn::MultiheadAttentionImpl, torch::nn::MultiheadAttentionOptions)           \
  MODULE(torch::nn::TransformerEncoderLayerImpl, torch::nn::TransformerEncoderLayerOptions) \
  MODULE(torch::nn::TransformerDecoderLayerImpl, torch::nn::TransformerDecoderLayerOptions) \
  MODULE(torch::nn::TransformerEncoderImpl, torch::nn::TransformerEncoderOptions)           \
  MODULE(torch::nn::TransformerDecoderImpl, torch::nn::TransformerDecoderOptions)           \
  MODULE(torch::nn::TransformerImpl, torch::nn::TransformerOptions)
// Expands MODULE for the modules that are only layers.
#define GRADWIRE_STOCK_LAYERS(MODULE)                                       \
  MODULE(torch::nn::ConvTranspose1dImpl, torch::nn::ConvTranspose1dOptions) \
  MODULE(torch::nn::ConvTranspose2dImpl, torch::nn::ConvTranspose2dOptions) \
  MODULE(torch::nn::ConvTranspose3dImpl, torch::nn::ConvTranspose3dOptions)

// The default arguments of forward, as libtorch declares them.
namespace module_internal {
template <class... T>
struct Defaults {
  static std::tuple<T...> values() { return {}; }
};
using State = std::optional<std::tuple<at::Tensor, at::Tensor>>;
// key_padding_mask, need_weights, attn_mask, average_attn_weights.
struct AttentionDefaults {
  static std::tuple<at::Tensor, bool, at::Tensor, bool> values() {
    return std::make_tuple(at::Tensor(), true, at::Tensor(), true);
  }
};
}  // namespace module_internal

GRADWIRE_STOCK_LINEAR_MODULES(GRADWIRE_RPC_CONSTRUCTOR)
GRADWIRE_STOCK_ACTIVATIONS(GRADWIRE_RPC_CONSTRUCTOR)
GRADWIRE_STOCK_POOLING_MODULES(GRADWIRE_RPC_CONSTRUCTOR)
GRADWIRE_STOCK_SEQUENCE_MODULES(GRADWIRE_RPC_CONSTRUCTOR)
GRADWIRE_STOCK_LAYERS(GRADWIRE_RPC_CONSTRUCTOR)

#define GRADWIRE_FORWARD_DEFAULTS_(module, ...) \
  template <>                                   \
  struct ForwardDefaults<torch::nn::module> : __VA_ARGS__ {};
GRADWIRE_FORWARD_DEFAULTS_(EmbeddingBagImpl, module_internal::Defaults<at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(RNNImpl, module_internal::Defaults<at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(GRUImpl, module_internal::Defaults<at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(LSTMImpl, module_internal::Defaults<module_internal::State>)
GRADWIRE_FORWARD_DEFAULTS_(RNNCellImpl, module_internal::Defaults<at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(GRUCellImpl, module_internal::Defaults<at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(LSTMCellImpl, module_internal::Defaults<module_internal::State>)
GRADWIRE_FORWARD_DEFAULTS_(TransformerEncoderLayerImpl, module_internal::Defaults<at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(TransformerEncoderImpl, module_internal::Defaults<at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(TransformerDecoderLayerImpl,
                           module_internal::Defaults<at::Tensor, at::Tensor, at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(TransformerDecoderImpl,
                           module_internal::Defaults<at::Tensor, at::Tensor, at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(
    TransformerImpl,
    module_internal::Defaults<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>)
GRADWIRE_FORWARD_DEFAULTS_(MultiheadAttentionImpl, module_internal::AttentionDefaults)
#undef GRADWIRE_FORWARD_DEFAULTS_

}  // namespace gradwire::rpc
