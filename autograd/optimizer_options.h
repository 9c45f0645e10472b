#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <string>
#include <tuple>

#include "gradwire/codec/codec.h"
#include "gradwire/codec/codec_containers.h"

// Codecs for the options of libtorch's optimizers, which are sent to the owners of parameters.
namespace gradwire::autograd {

// The type of the options that an optimizer is constructed with, and its name on the wire. For a custom
// optimizer, specialise OptimizerTraits, and Codec for its options; then write
// GRADWIRE_OPTIMIZER(MyOptimizer) in a library that both programs link. The optimizer must have a constructor
// (std::vector<OptimizerParamGroup>, Options), or (std::vector<Tensor>, Options) if it has no groups.
// kNeedsClosure = true means that its step() evaluates the loss.
template <class O>
struct OptimizerTraits;

#define GRADWIRE_STOCK_OPTIMIZER_(O, needs_closure)        \
  template <>                                              \
  struct OptimizerTraits<torch::optim::O> {                \
    using Options = torch::optim::O##Options;              \
    static const char* name() { return #O; }               \
    static constexpr bool kNeedsClosure = (needs_closure); \
  };
GRADWIRE_STOCK_OPTIMIZER_(SGD, false)
GRADWIRE_STOCK_OPTIMIZER_(Adam, false)
GRADWIRE_STOCK_OPTIMIZER_(AdamW, false)
GRADWIRE_STOCK_OPTIMIZER_(Adagrad, false)
GRADWIRE_STOCK_OPTIMIZER_(RMSprop, false)
GRADWIRE_STOCK_OPTIMIZER_(LBFGS, true)
#undef GRADWIRE_STOCK_OPTIMIZER_

}  // namespace gradwire::autograd

namespace gradwire::rpc {
namespace optimizer_internal {

// Encodes options as a tuple of their fields.
template <class Options, class Tuple, const char* kName, Tuple (*kPack)(const Options&),
          Options (*kUnpack)(const Tuple&)>
struct OptionsCodec {
  static std::string type_name() { return kName; }
  static absl::Status encode(const Options& options, Encoder& encoder, proto::Value& out) {
    return encode_value<Tuple>(kPack(options), encoder, out);
  }
  static absl::StatusOr<Options> decode(const proto::Value& in, Decoder& decoder) {
    absl::StatusOr<Tuple> tuple = decode_value<Tuple>(in, decoder);
    if (!tuple.ok()) return tuple.status();
    return kUnpack(*tuple);
  }
};

using Sgd = std::tuple<double, double, double, double, bool>;
inline constexpr char kSgdName[] = "SGDOptions";
inline Sgd pack(const torch::optim::SGDOptions& o) {
  return {o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov()};
}
inline torch::optim::SGDOptions unpack(const Sgd& t) {
  return torch::optim::SGDOptions(std::get<0>(t))
      .momentum(std::get<1>(t))
      .dampening(std::get<2>(t))
      .weight_decay(std::get<3>(t))
      .nesterov(std::get<4>(t));
}

using AdamFields = std::tuple<double, double, double, double, double, bool>;
inline constexpr char kAdamName[] = "AdamOptions";
inline constexpr char kAdamWName[] = "AdamWOptions";
template <class Options>
AdamFields pack_adam(const Options& o) {
  return {o.lr(), std::get<0>(o.betas()), std::get<1>(o.betas()), o.eps(), o.weight_decay(), o.amsgrad()};
}
template <class Options>
Options unpack_adam(const AdamFields& t) {
  return Options(std::get<0>(t))
      .betas(std::make_tuple(std::get<1>(t), std::get<2>(t)))
      .eps(std::get<3>(t))
      .weight_decay(std::get<4>(t))
      .amsgrad(std::get<5>(t));
}

using Adagrad = std::tuple<double, double, double, double, double>;
inline constexpr char kAdagradName[] = "AdagradOptions";
inline Adagrad pack(const torch::optim::AdagradOptions& o) {
  return {o.lr(), o.lr_decay(), o.weight_decay(), o.initial_accumulator_value(), o.eps()};
}
inline torch::optim::AdagradOptions unpack(const Adagrad& t) {
  return torch::optim::AdagradOptions(std::get<0>(t))
      .lr_decay(std::get<1>(t))
      .weight_decay(std::get<2>(t))
      .initial_accumulator_value(std::get<3>(t))
      .eps(std::get<4>(t));
}

using RmsProp = std::tuple<double, double, double, double, double, bool>;
inline constexpr char kRmsPropName[] = "RMSpropOptions";
inline RmsProp pack(const torch::optim::RMSpropOptions& o) {
  return {o.lr(), o.alpha(), o.eps(), o.weight_decay(), o.momentum(), o.centered()};
}
inline torch::optim::RMSpropOptions unpack_rms_prop(const RmsProp& t) {
  return torch::optim::RMSpropOptions(std::get<0>(t))
      .alpha(std::get<1>(t))
      .eps(std::get<2>(t))
      .weight_decay(std::get<3>(t))
      .momentum(std::get<4>(t))
      .centered(std::get<5>(t));
}

using Lbfgs =
    std::tuple<double, int64_t, std::optional<int64_t>, double, double, int64_t, std::optional<std::string>>;
inline constexpr char kLbfgsName[] = "LBFGSOptions";
inline Lbfgs pack(const torch::optim::LBFGSOptions& o) {
  return {o.lr(),           o.max_iter(),      o.max_eval(), o.tolerance_grad(), o.tolerance_change(),
          o.history_size(), o.line_search_fn()};
}
inline torch::optim::LBFGSOptions unpack(const Lbfgs& t) {
  return torch::optim::LBFGSOptions(std::get<0>(t))
      .max_iter(std::get<1>(t))
      .max_eval(std::get<2>(t))
      .tolerance_grad(std::get<3>(t))
      .tolerance_change(std::get<4>(t))
      .history_size(std::get<5>(t))
      .line_search_fn(std::get<6>(t));
}

}  // namespace optimizer_internal

template <>
struct Codec<torch::optim::SGDOptions>
    : optimizer_internal::OptionsCodec<torch::optim::SGDOptions, optimizer_internal::Sgd,
                                       optimizer_internal::kSgdName, &optimizer_internal::pack,
                                       &optimizer_internal::unpack> {};
template <>
struct Codec<torch::optim::AdamOptions>
    : optimizer_internal::OptionsCodec<torch::optim::AdamOptions, optimizer_internal::AdamFields,
                                       optimizer_internal::kAdamName,
                                       &optimizer_internal::pack_adam<torch::optim::AdamOptions>,
                                       &optimizer_internal::unpack_adam<torch::optim::AdamOptions>> {};
template <>
struct Codec<torch::optim::AdamWOptions>
    : optimizer_internal::OptionsCodec<torch::optim::AdamWOptions, optimizer_internal::AdamFields,
                                       optimizer_internal::kAdamWName,
                                       &optimizer_internal::pack_adam<torch::optim::AdamWOptions>,
                                       &optimizer_internal::unpack_adam<torch::optim::AdamWOptions>> {};
template <>
struct Codec<torch::optim::AdagradOptions>
    : optimizer_internal::OptionsCodec<torch::optim::AdagradOptions, optimizer_internal::Adagrad,
                                       optimizer_internal::kAdagradName, &optimizer_internal::pack,
                                       &optimizer_internal::unpack> {};
template <>
struct Codec<torch::optim::RMSpropOptions>
    : optimizer_internal::OptionsCodec<torch::optim::RMSpropOptions, optimizer_internal::RmsProp,
                                       optimizer_internal::kRmsPropName, &optimizer_internal::pack,
                                       &optimizer_internal::unpack_rms_prop> {};
template <>
struct Codec<torch::optim::LBFGSOptions>
    : optimizer_internal::OptionsCodec<torch::optim::LBFGSOptions, optimizer_internal::Lbfgs,
                                       optimizer_internal::kLbfgsName, &optimizer_internal::pack,
                                       &optimizer_internal::unpack> {};

}  // namespace gradwire::rpc
