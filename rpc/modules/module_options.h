#pragma once

#include <torch/nn/options.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/instancenorm.h>
#include <torch/nn/options/upsampling.h>

#include <string>

#include "gradwire/codec/codec.h"

// Codecs of the options of libtorch's modules. All fields of the options are sent. A field that names a
// function or a module of the caller cannot be sent: encode() then returns InvalidArgument, which names it.
namespace gradwire::rpc {

#define GRADWIRE_OPTIONS_CODEC_(Options)                                                                \
  template <>                                                                                           \
  struct Codec<torch::nn::Options> {                                                                    \
    static constexpr bool kMadeOfArguments = true;                                                      \
    static std::string type_name();                                                                     \
    static absl::Status encode(const torch::nn::Options& options, Encoder& encoder, proto::Value& out); \
    static absl::StatusOr<torch::nn::Options> decode(const proto::Value& in, Decoder& decoder);         \
  };

GRADWIRE_OPTIONS_CODEC_(LinearOptions)
GRADWIRE_OPTIONS_CODEC_(BilinearOptions)
GRADWIRE_OPTIONS_CODEC_(FlattenOptions)
GRADWIRE_OPTIONS_CODEC_(Conv1dOptions)
GRADWIRE_OPTIONS_CODEC_(Conv2dOptions)
GRADWIRE_OPTIONS_CODEC_(Conv3dOptions)
GRADWIRE_OPTIONS_CODEC_(ConvTranspose1dOptions)
GRADWIRE_OPTIONS_CODEC_(ConvTranspose2dOptions)
GRADWIRE_OPTIONS_CODEC_(ConvTranspose3dOptions)
GRADWIRE_OPTIONS_CODEC_(EmbeddingOptions)
GRADWIRE_OPTIONS_CODEC_(EmbeddingBagOptions)
GRADWIRE_OPTIONS_CODEC_(RNNOptions)
GRADWIRE_OPTIONS_CODEC_(LSTMOptions)
GRADWIRE_OPTIONS_CODEC_(GRUOptions)
GRADWIRE_OPTIONS_CODEC_(RNNCellOptions)
GRADWIRE_OPTIONS_CODEC_(LSTMCellOptions)
GRADWIRE_OPTIONS_CODEC_(GRUCellOptions)
GRADWIRE_OPTIONS_CODEC_(LayerNormOptions)
GRADWIRE_OPTIONS_CODEC_(GroupNormOptions)
GRADWIRE_OPTIONS_CODEC_(LocalResponseNormOptions)
GRADWIRE_OPTIONS_CODEC_(BatchNormOptions)
GRADWIRE_OPTIONS_CODEC_(InstanceNormOptions)
GRADWIRE_OPTIONS_CODEC_(DropoutOptions)
GRADWIRE_OPTIONS_CODEC_(ELUOptions)
GRADWIRE_OPTIONS_CODEC_(SELUOptions)
GRADWIRE_OPTIONS_CODEC_(CELUOptions)
GRADWIRE_OPTIONS_CODEC_(GELUOptions)
GRADWIRE_OPTIONS_CODEC_(GLUOptions)
GRADWIRE_OPTIONS_CODEC_(ReLUOptions)
GRADWIRE_OPTIONS_CODEC_(ReLU6Options)
GRADWIRE_OPTIONS_CODEC_(RReLUOptions)
GRADWIRE_OPTIONS_CODEC_(PReLUOptions)
GRADWIRE_OPTIONS_CODEC_(LeakyReLUOptions)
GRADWIRE_OPTIONS_CODEC_(HardshrinkOptions)
GRADWIRE_OPTIONS_CODEC_(HardtanhOptions)
GRADWIRE_OPTIONS_CODEC_(SoftplusOptions)
GRADWIRE_OPTIONS_CODEC_(SoftshrinkOptions)
GRADWIRE_OPTIONS_CODEC_(ThresholdOptions)
GRADWIRE_OPTIONS_CODEC_(SoftmaxOptions)
GRADWIRE_OPTIONS_CODEC_(SoftminOptions)
GRADWIRE_OPTIONS_CODEC_(LogSoftmaxOptions)
GRADWIRE_OPTIONS_CODEC_(AvgPool1dOptions)
GRADWIRE_OPTIONS_CODEC_(AvgPool2dOptions)
GRADWIRE_OPTIONS_CODEC_(AvgPool3dOptions)
GRADWIRE_OPTIONS_CODEC_(MaxPool1dOptions)
GRADWIRE_OPTIONS_CODEC_(MaxPool2dOptions)
GRADWIRE_OPTIONS_CODEC_(MaxPool3dOptions)
GRADWIRE_OPTIONS_CODEC_(AdaptiveAvgPool1dOptions)
GRADWIRE_OPTIONS_CODEC_(AdaptiveAvgPool2dOptions)
GRADWIRE_OPTIONS_CODEC_(AdaptiveAvgPool3dOptions)
GRADWIRE_OPTIONS_CODEC_(UpsampleOptions)
GRADWIRE_OPTIONS_CODEC_(MultiheadAttentionOptions)
GRADWIRE_OPTIONS_CODEC_(TransformerEncoderLayerOptions)
GRADWIRE_OPTIONS_CODEC_(TransformerDecoderLayerOptions)
// The layer travels as its options, so the receiver makes a new one, with its own weights. A `norm` that is
// not a LayerNorm cannot be sent.
GRADWIRE_OPTIONS_CODEC_(TransformerEncoderOptions)
GRADWIRE_OPTIONS_CODEC_(TransformerDecoderOptions)
// A custom encoder or decoder cannot be sent.
GRADWIRE_OPTIONS_CODEC_(TransformerOptions)

#undef GRADWIRE_OPTIONS_CODEC_

}  // namespace gradwire::rpc
