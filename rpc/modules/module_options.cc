#include "gradwire/rpc/modules/module_options.h"

#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>

#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"

namespace gradwire::rpc {
namespace {

using Activation = std::function<at::Tensor(const at::Tensor&)>;

// How a field of type F travels: as a Wire<F>::Type. Fields of most types travel as they are.
template <class F>
struct Wire {
  using Type = F;
  static absl::StatusOr<Type> to(const F& field) { return field; }
  static absl::Status from(Type wire, F& field) {
    field = std::move(wire);
    return absl::OkStatus();
  }
};

template <class Numbers, class Array>
absl::Status copy_numbers(const Numbers& wire, Array& field) {
  if (wire.size() != field->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed options: got ", wire.size(), " numbers, expected ", field->size()));
  }
  std::copy(wire.begin(), wire.end(), field->begin());
  return absl::OkStatus();
}

// One number for each dimension.
template <size_t D>
struct Wire<torch::ExpandingArray<D>> {
  using Type = std::vector<int64_t>;
  static absl::StatusOr<Type> to(const torch::ExpandingArray<D>& field) {
    return Type(field->begin(), field->end());
  }
  static absl::Status from(const Type& wire, torch::ExpandingArray<D>& field) {
    return copy_numbers(wire, field);
  }
};
template <size_t D>
struct Wire<torch::ExpandingArrayWithOptionalElem<D>> {
  using Type = std::vector<std::optional<int64_t>>;
  static absl::StatusOr<Type> to(const torch::ExpandingArrayWithOptionalElem<D>& field) {
    return Type(field->begin(), field->end());
  }
  static absl::Status from(const Type& wire, torch::ExpandingArrayWithOptionalElem<D>& field) {
    return copy_numbers(wire, field);
  }
};

// A choice: the index of the alternative, and its numbers if it has any.
template <class... A>
struct Wire<std::variant<A...>> {
  using Type = std::pair<int64_t, std::vector<int64_t>>;

  static absl::StatusOr<Type> to(const std::variant<A...>& field) {
    Type wire(static_cast<int64_t>(field.index()), {});
    absl::Status status;
    std::visit(
        [&]<class Alternative>(const Alternative& value) {
          if constexpr (std::is_same_v<Alternative, Activation>) {
            status = absl::InvalidArgumentError(
                "cannot send the options of a module: the activation is a function of this program, expected "
                "torch::kReLU or torch::kGELU; register a module of your own");
          } else if constexpr (!std::is_empty_v<Alternative>) {
            wire.second = *Wire<Alternative>::to(value);
          }
        },
        field);
    if (!status.ok()) return status;
    return wire;
  }
  static absl::Status from(const Type& wire, std::variant<A...>& field) {
    absl::Status status = absl::InvalidArgumentError("malformed options: unknown alternative");
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (
          [&] {
            if (wire.first != static_cast<int64_t>(I)) return;
            using Alternative = std::variant_alternative_t<I, std::variant<A...>>;
            if constexpr (std::is_same_v<Alternative, Activation>) {
              return;
            } else if constexpr (std::is_empty_v<Alternative>) {
              field = Alternative();
              status = absl::OkStatus();
            } else {
              Alternative value(0);
              status = Wire<Alternative>::from(wire.second, value);
              if (status.ok()) field = value;
            }
          }(),
          ...);
    }
    (std::index_sequence_for<A...>());
    return status;
  }
};

template <class... F>
absl::Status encode_fields(std::tuple<F&...> fields, Encoder& encoder, proto::Value& out) {
  using Tuple = std::tuple<typename Wire<F>::Type...>;
  absl::Status status;
  std::tuple<absl::StatusOr<typename Wire<F>::Type>...> wires =
      std::apply([](const F&... field) { return std::make_tuple(Wire<F>::to(field)...); }, fields);
  std::apply([&status](const auto&... wire) { (status.Update(wire.status()), ...); }, wires);
  if (!status.ok()) return status;
  return std::apply(
      [&](auto&... wire) { return encode_value<Tuple>(Tuple(*std::move(wire)...), encoder, out); }, wires);
}

template <class... F>
absl::Status decode_fields(const proto::Value& in, Decoder& decoder, std::tuple<F&...> fields) {
  using Tuple = std::tuple<typename Wire<F>::Type...>;
  GRADWIRE_ASSIGN_OR_RETURN(Tuple wires, decode_value<Tuple>(in, decoder));
  absl::Status status;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (status.Update(Wire<F>::from(std::move(std::get<I>(wires)), std::get<I>(fields))), ...);
  }
  (std::index_sequence_for<F...>());
  return status;
}

// Libtorch divides by some numbers of options, or loops so many times, without a check of its own. Such a
// number, sent by another process, would end this one with a signal, or keep a thread and fill the memory
// until it ends. check() refuses them. Libtorch itself checks the other numbers and throws.

// Bounds the layers of one recurrent module or one transformer.
constexpr int64_t kMostLayers = 4096;
// Bounds the sizes, strides, dilations and paddings of pooling.
constexpr int64_t kMostPooled = int64_t{1} << 24;

absl::Status check_number(absl::string_view name, int64_t number, int64_t least, int64_t most) {
  if (number >= least && number <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " out of range: got ", number, ", expected a number in [", least, ", ", most, "]"));
}

// The head's size is the first divided by the second.
absl::Status check_heads(absl::string_view size_name, int64_t size, absl::string_view heads_name,
                         int64_t heads) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  GRADWIRE_RETURN_IF_ERROR(check_number(size_name, size, 1, kMost));
  return check_number(heads_name, heads, 1, kMost);
}

template <size_t D>
absl::Status check_numbers(absl::string_view name, const torch::ExpandingArray<D>& numbers, int64_t least) {
  for (const int64_t number : *numbers) {
    GRADWIRE_RETURN_IF_ERROR(check_number(name, number, least, kMostPooled));
  }
  return absl::OkStatus();
}

template <class Options>
absl::Status check(const Options& o) {
  if constexpr (requires { o.num_heads(); }) {
    return check_heads("embed_dim", o.embed_dim(), "num_heads", o.num_heads());
  } else if constexpr (requires { o.nhead(); }) {
    GRADWIRE_RETURN_IF_ERROR(check_heads("d_model", o.d_model(), "nhead", o.nhead()));
    if constexpr (requires { o.num_encoder_layers(); }) {
      GRADWIRE_RETURN_IF_ERROR(check_number("num_encoder_layers", o.num_encoder_layers(), 1, kMostLayers));
      return check_number("num_decoder_layers", o.num_decoder_layers(), 1, kMostLayers);
    }
  } else if constexpr (requires { o.num_layers(); }) {
    return check_number("num_layers", o.num_layers(), 1, kMostLayers);
  } else if constexpr (requires { o.ceil_mode(); }) {
    GRADWIRE_RETURN_IF_ERROR(check_numbers("kernel_size", o.kernel_size(), 1));
    GRADWIRE_RETURN_IF_ERROR(check_numbers("stride", o.stride(), 1));
    GRADWIRE_RETURN_IF_ERROR(check_numbers("padding", o.padding(), 0));
    if constexpr (requires { o.dilation(); }) return check_numbers("dilation", o.dilation(), 1);
  }
  return absl::OkStatus();
}

// The caller checks too, so that its error comes before the call.
template <class Options>
absl::Status check_options(const Options& options, absl::string_view name) {
  return with_context(check(options), absl::StrCat("torch::nn::", name));
}

}  // namespace

// Defines the Codec of options that `initial` makes, with these fields of the object `o`.
#define GRADWIRE_OPTIONS(Options, initial, ...)                                                       \
  std::string Codec<torch::nn::Options>::type_name() { return "torch::nn::" #Options; }               \
  absl::Status Codec<torch::nn::Options>::encode(const torch::nn::Options& options, Encoder& encoder, \
                                                 proto::Value& out) {                                 \
    GRADWIRE_RETURN_IF_ERROR(check_options(options, #Options));                                       \
    torch::nn::Options o = options;                                                                   \
    return encode_fields(std::tie(__VA_ARGS__), encoder, out);                                        \
  }                                                                                                   \
  absl::StatusOr<torch::nn::Options> Codec<torch::nn::Options>::decode(const proto::Value& in,        \
                                                                       Decoder& decoder) {            \
    torch::nn::Options o initial;                                                                     \
    GRADWIRE_RETURN_IF_ERROR(decode_fields(in, decoder, std::tie(__VA_ARGS__)));                      \
    GRADWIRE_RETURN_IF_ERROR(check_options(o, #Options));                                             \
    return o;                                                                                         \
  }

GRADWIRE_OPTIONS(LinearOptions, (1, 1), o.in_features(), o.out_features(), o.bias())
GRADWIRE_OPTIONS(BilinearOptions, (1, 1, 1), o.in1_features(), o.in2_features(), o.out_features(), o.bias())
GRADWIRE_OPTIONS(FlattenOptions, , o.start_dim(), o.end_dim())

#define GRADWIRE_CONV_OPTIONS(Options)                                                                 \
  GRADWIRE_OPTIONS(Options, (1, 1, 1), o.in_channels(), o.out_channels(), o.kernel_size(), o.stride(), \
                   o.padding(), o.dilation(), o.groups(), o.bias(), o.padding_mode())
GRADWIRE_CONV_OPTIONS(Conv1dOptions)
GRADWIRE_CONV_OPTIONS(Conv2dOptions)
GRADWIRE_CONV_OPTIONS(Conv3dOptions)
#define GRADWIRE_CONV_TRANSPOSE_OPTIONS(Options)                                                       \
  GRADWIRE_OPTIONS(Options, (1, 1, 1), o.in_channels(), o.out_channels(), o.kernel_size(), o.stride(), \
                   o.padding(), o.output_padding(), o.groups(), o.bias(), o.dilation(), o.padding_mode())
GRADWIRE_CONV_TRANSPOSE_OPTIONS(ConvTranspose1dOptions)
GRADWIRE_CONV_TRANSPOSE_OPTIONS(ConvTranspose2dOptions)
GRADWIRE_CONV_TRANSPOSE_OPTIONS(ConvTranspose3dOptions)

GRADWIRE_OPTIONS(EmbeddingOptions, (1, 1), o.num_embeddings(), o.embedding_dim(), o.padding_idx(),
                 o.max_norm(), o.norm_type(), o.scale_grad_by_freq(), o.sparse(), o._weight())
GRADWIRE_OPTIONS(EmbeddingBagOptions, (1, 1), o.num_embeddings(), o.embedding_dim(), o.max_norm(),
                 o.norm_type(), o.scale_grad_by_freq(), o.mode(), o.sparse(), o._weight(),
                 o.include_last_offset(), o.padding_idx())

GRADWIRE_OPTIONS(RNNOptions, (1, 1), o.input_size(), o.hidden_size(), o.num_layers(), o.nonlinearity(),
                 o.bias(), o.batch_first(), o.dropout(), o.bidirectional())
GRADWIRE_OPTIONS(LSTMOptions, (1, 1), o.input_size(), o.hidden_size(), o.num_layers(), o.bias(),
                 o.batch_first(), o.dropout(), o.bidirectional(), o.proj_size())
GRADWIRE_OPTIONS(GRUOptions, (1, 1), o.input_size(), o.hidden_size(), o.num_layers(), o.bias(),
                 o.batch_first(), o.dropout(), o.bidirectional())
GRADWIRE_OPTIONS(RNNCellOptions, (1, 1), o.input_size(), o.hidden_size(), o.bias(), o.nonlinearity())
GRADWIRE_OPTIONS(LSTMCellOptions, (1, 1), o.input_size(), o.hidden_size(), o.bias())
GRADWIRE_OPTIONS(GRUCellOptions, (1, 1), o.input_size(), o.hidden_size(), o.bias())

GRADWIRE_OPTIONS(LayerNormOptions, ({}), o.normalized_shape(), o.eps(), o.elementwise_affine())
GRADWIRE_OPTIONS(GroupNormOptions, (1, 1), o.num_groups(), o.num_channels(), o.eps(), o.affine())
GRADWIRE_OPTIONS(LocalResponseNormOptions, (1), o.size(), o.alpha(), o.beta(), o.k())
GRADWIRE_OPTIONS(BatchNormOptions, (1), o.num_features(), o.eps(), o.momentum(), o.affine(),
                 o.track_running_stats())
GRADWIRE_OPTIONS(InstanceNormOptions, (1), o.num_features(), o.eps(), o.momentum(), o.affine(),
                 o.track_running_stats())
GRADWIRE_OPTIONS(DropoutOptions, , o.p(), o.inplace())

GRADWIRE_OPTIONS(ELUOptions, , o.alpha(), o.inplace())
GRADWIRE_OPTIONS(SELUOptions, , o.inplace())
GRADWIRE_OPTIONS(CELUOptions, , o.alpha(), o.inplace())
GRADWIRE_OPTIONS(GELUOptions, , o.approximate())
GRADWIRE_OPTIONS(GLUOptions, , o.dim())
GRADWIRE_OPTIONS(ReLUOptions, , o.inplace())
GRADWIRE_OPTIONS(ReLU6Options, , o.inplace())
GRADWIRE_OPTIONS(RReLUOptions, , o.lower(), o.upper(), o.inplace())
GRADWIRE_OPTIONS(PReLUOptions, , o.num_parameters(), o.init())
GRADWIRE_OPTIONS(LeakyReLUOptions, , o.negative_slope(), o.inplace())
GRADWIRE_OPTIONS(HardshrinkOptions, , o.lambda())
GRADWIRE_OPTIONS(HardtanhOptions, , o.min_val(), o.max_val(), o.inplace())
GRADWIRE_OPTIONS(SoftplusOptions, , o.beta(), o.threshold())
GRADWIRE_OPTIONS(SoftshrinkOptions, , o.lambda())
GRADWIRE_OPTIONS(ThresholdOptions, (0, 0), o.threshold(), o.value(), o.inplace())
GRADWIRE_OPTIONS(SoftmaxOptions, (0), o.dim())
GRADWIRE_OPTIONS(SoftminOptions, (0), o.dim())
GRADWIRE_OPTIONS(LogSoftmaxOptions, (0), o.dim())

#define GRADWIRE_AVG_POOL_OPTIONS(Options)                                                \
  GRADWIRE_OPTIONS(Options, (1), o.kernel_size(), o.stride(), o.padding(), o.ceil_mode(), \
                   o.count_include_pad(), o.divisor_override())
GRADWIRE_AVG_POOL_OPTIONS(AvgPool1dOptions)
GRADWIRE_AVG_POOL_OPTIONS(AvgPool2dOptions)
GRADWIRE_AVG_POOL_OPTIONS(AvgPool3dOptions)
#define GRADWIRE_MAX_POOL_OPTIONS(Options) \
  GRADWIRE_OPTIONS(Options, (1), o.kernel_size(), o.stride(), o.padding(), o.dilation(), o.ceil_mode())
GRADWIRE_MAX_POOL_OPTIONS(MaxPool1dOptions)
GRADWIRE_MAX_POOL_OPTIONS(MaxPool2dOptions)
GRADWIRE_MAX_POOL_OPTIONS(MaxPool3dOptions)
GRADWIRE_OPTIONS(AdaptiveAvgPool1dOptions, (1), o.output_size())
GRADWIRE_OPTIONS(AdaptiveAvgPool2dOptions, (1), o.output_size())
GRADWIRE_OPTIONS(AdaptiveAvgPool3dOptions, (1), o.output_size())
GRADWIRE_OPTIONS(UpsampleOptions, , o.size(), o.scale_factor(), o.mode(), o.align_corners())

GRADWIRE_OPTIONS(MultiheadAttentionOptions, (1, 1), o.embed_dim(), o.num_heads(), o.dropout(), o.bias(),
                 o.add_bias_kv(), o.add_zero_attn(), o.kdim(), o.vdim())
GRADWIRE_OPTIONS(TransformerEncoderLayerOptions, (1, 1), o.d_model(), o.nhead(), o.dim_feedforward(),
                 o.dropout(), o.activation())
GRADWIRE_OPTIONS(TransformerDecoderLayerOptions, (1, 1), o.d_model(), o.nhead(), o.dim_feedforward(),
                 o.dropout(), o.activation())

namespace {

// The module `norm` of an encoder or decoder as it travels.
absl::StatusOr<std::optional<torch::nn::LayerNormOptions>> norm_options(const torch::nn::AnyModule& norm) {
  if (norm.is_empty()) return std::optional<torch::nn::LayerNormOptions>();
  const auto* layer_norm = norm.ptr()->as<torch::nn::LayerNormImpl>();
  if (layer_norm == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("cannot send the options of a transformer: its norm is a ",
                                                   norm.ptr()->name(),
                                                   ", expected a LayerNorm; register a module of your own"));
  }
  return std::make_optional(layer_norm->options);
}

// Options of an encoder or a decoder: those of its layer, the number of layers, the norm.
template <class LayerOptions>
using CoderWire = std::tuple<LayerOptions, int64_t, std::optional<torch::nn::LayerNormOptions>>;

template <class LayerOptions, class Options, class Layer>
absl::Status encode_coder(const Options& options, const Layer& layer, Encoder& encoder, proto::Value& out) {
  if (layer.is_empty()) {
    return absl::InvalidArgumentError("cannot send the options of a transformer: they have no layer");
  }
  GRADWIRE_RETURN_IF_ERROR(check_options(options, "TransformerEncoderOptions or TransformerDecoderOptions"));
  GRADWIRE_ASSIGN_OR_RETURN(auto norm, norm_options(options.norm()));
  using Coder = CoderWire<LayerOptions>;
  return encode_value<Coder>(Coder(layer->options, options.num_layers(), std::move(norm)), encoder, out);
}

template <class LayerOptions, class Options>
absl::StatusOr<Options> decode_coder(const proto::Value& in, Decoder& decoder) {
  using Coder = CoderWire<LayerOptions>;
  GRADWIRE_ASSIGN_OR_RETURN(Coder wire, decode_value<Coder>(in, decoder));
  Options options(std::get<0>(wire), std::get<1>(wire));
  GRADWIRE_RETURN_IF_ERROR(check_options(options, "TransformerEncoderOptions or TransformerDecoderOptions"));
  if (std::get<2>(wire)) options.norm(torch::nn::AnyModule(torch::nn::LayerNorm(*std::get<2>(wire))));
  return options;
}

}  // namespace

std::string Codec<torch::nn::TransformerEncoderOptions>::type_name() {
  return "torch::nn::TransformerEncoderOptions";
}
absl::Status Codec<torch::nn::TransformerEncoderOptions>::encode(
    const torch::nn::TransformerEncoderOptions& options, Encoder& encoder, proto::Value& out) {
  return encode_coder<torch::nn::TransformerEncoderLayerOptions>(options, options.encoder_layer(), encoder,
                                                                 out);
}
absl::StatusOr<torch::nn::TransformerEncoderOptions> Codec<torch::nn::TransformerEncoderOptions>::decode(
    const proto::Value& in, Decoder& decoder) {
  return decode_coder<torch::nn::TransformerEncoderLayerOptions, torch::nn::TransformerEncoderOptions>(
      in, decoder);
}

std::string Codec<torch::nn::TransformerDecoderOptions>::type_name() {
  return "torch::nn::TransformerDecoderOptions";
}
absl::Status Codec<torch::nn::TransformerDecoderOptions>::encode(
    const torch::nn::TransformerDecoderOptions& options, Encoder& encoder, proto::Value& out) {
  return encode_coder<torch::nn::TransformerDecoderLayerOptions>(options, options.decoder_layer(), encoder,
                                                                 out);
}
absl::StatusOr<torch::nn::TransformerDecoderOptions> Codec<torch::nn::TransformerDecoderOptions>::decode(
    const proto::Value& in, Decoder& decoder) {
  return decode_coder<torch::nn::TransformerDecoderLayerOptions, torch::nn::TransformerDecoderOptions>(
      in, decoder);
}

std::string Codec<torch::nn::TransformerOptions>::type_name() { return "torch::nn::TransformerOptions"; }
absl::Status Codec<torch::nn::TransformerOptions>::encode(const torch::nn::TransformerOptions& options,
                                                          Encoder& encoder, proto::Value& out) {
  if (!options.custom_encoder().is_empty() || !options.custom_decoder().is_empty()) {
    return absl::InvalidArgumentError(
        "cannot send the options of a transformer: a custom encoder or decoder is a module of this program; "
        "register a module of your own");
  }
  GRADWIRE_RETURN_IF_ERROR(check_options(options, "TransformerOptions"));
  torch::nn::TransformerOptions o = options;
  return encode_fields(std::tie(o.d_model(), o.nhead(), o.num_encoder_layers(), o.num_decoder_layers(),
                                o.dim_feedforward(), o.dropout(), o.activation()),
                       encoder, out);
}
absl::StatusOr<torch::nn::TransformerOptions> Codec<torch::nn::TransformerOptions>::decode(
    const proto::Value& in, Decoder& decoder) {
  torch::nn::TransformerOptions o;
  GRADWIRE_RETURN_IF_ERROR(
      decode_fields(in, decoder,
                    std::tie(o.d_model(), o.nhead(), o.num_encoder_layers(), o.num_decoder_layers(),
                             o.dim_feedforward(), o.dropout(), o.activation())));
  GRADWIRE_RETURN_IF_ERROR(check_options(o, "TransformerOptions"));
  return o;
}

}  // namespace gradwire::rpc
