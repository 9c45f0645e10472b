#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/type_name.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/remote_module.h"

// Lets a module be a layer of a remote SequentialImpl: at namespace scope, in a library that both programs
// link, with the parameter types of the constructor to be used. Its forward takes and returns one tensor;
// more inputs need default arguments (FORWARD_HAS_DEFAULT_ARGS). Those of libtorch come registered with
// "gradwire/rpc/stock_modules.h".
//   GRADWIRE_RPC_LAYER(BlockImpl, int64_t)
#define GRADWIRE_RPC_LAYER(type, ...)                                                     \
  GRADWIRE_RPC_CONSTRUCTOR(type __VA_OPT__(, ) __VA_ARGS__)                               \
  [[maybe_unused]] static const bool GRADWIRE_CONCAT_(gradwire_rpc_layer_, __COUNTER__) = \
      ::gradwire::rpc::sequential_internal::add_layer<type __VA_OPT__(, ) __VA_ARGS__>();

namespace gradwire::rpc {

// One layer of a remote SequentialImpl, made by layer(): the class of a module, and the arguments of its
// constructor. The worker that receives it makes the module. Copies of a layer that was received share its
// module.
class Layer {
 public:
  // Encodes the arguments of the constructor, as a tuple.
  using EncodeArguments = std::function<absl::Status(Encoder& encoder, proto::Value& out)>;

  // `type`: the class of the module, as cpp_type_name() returns it.
  Layer(std::string type, EncodeArguments encode) : type_(std::move(type)), encode_(std::move(encode)) {}
  // Holds a module that exists.
  Layer(std::string type, std::string name, torch::nn::AnyModule module)
      : type_(std::move(type)), name_(std::move(name)), module_(std::move(module)) {}

  // Returns a copy with this name in the SequentialImpl, in place of its number. The name must not be empty,
  // and has no dot.
  Layer named(std::string name) const {
    Layer copy = *this;
    copy.name_ = std::move(name);
    return copy;
  }

  // The class of the module.
  const std::string& type() const { return type_; }
  // Empty for a layer without a name.
  const std::string& name() const { return name_; }
  // Empty at a worker that has not received it.
  const torch::nn::AnyModule& module() const { return module_; }
  // Encodes the arguments. InvalidArgument for a layer that was received.
  absl::Status encode_arguments(Encoder& encoder, proto::Value& out) const;

 private:
  std::string type_;
  std::string name_;
  EncodeArguments encode_;
  torch::nn::AnyModule module_;
};

// Sends the description of a layer. The receiver makes the module.
template <>
struct Codec<Layer> {
  // The name in signatures.
  static std::string type_name() { return "Layer"; }
  // InvalidArgument for a layer that was received.
  static absl::Status encode(const Layer& layer, Encoder& encoder, proto::Value& out);
  // NotFound, with the registered classes, if the class is not registered as a layer here; InvalidArgument if
  // the arguments do not fit; Unknown if the constructor throws.
  static absl::StatusOr<Layer> decode(const proto::Value& in, Decoder& decoder);
};

// The layers of a remote SequentialImpl, in their order.
class Layers {
 public:
  // No layer.
  Layers() = default;
  // These layers.
  explicit Layers(std::vector<Layer> layers) : layers_(std::move(layers)) {}
  // These layers.
  template <class... Rest, class = std::enable_if_t<(std::is_same_v<Rest, Layer> && ...)>>
  explicit Layers(Layer first, Rest... rest) : layers_{std::move(first), std::move(rest)...} {}

  // The layers.
  const std::vector<Layer>& list() const { return layers_; }

 private:
  std::vector<Layer> layers_;
};

// Sends the descriptions of the layers.
template <>
struct Codec<Layers> {
  // A call of the constructor takes the layers themselves.
  static constexpr bool kMadeOfArguments = true;
  // The name in signatures.
  static std::string type_name() { return "Layers"; }
  // As Codec<Layer>.
  static absl::Status encode(const Layers& layers, Encoder& encoder, proto::Value& out) {
    return encode_value<std::vector<Layer>>(layers.list(), encoder, out);
  }
  // As Codec<Layer>.
  static absl::StatusOr<Layers> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<Layer> layers, decode_value<std::vector<Layer>>(in, decoder));
    return Layers(std::move(layers));
  }
};

// A torch::nn::Sequential that can be made on another worker:
//   RemoteModule<SequentialImpl> net("worker1", layer<torch::nn::LinearImpl>(64, 32),
//                                    layer<torch::nn::ReLUImpl>(), layer<torch::nn::LinearImpl>(32, 10));
// The layers begin with new weights. load_state_dict(state_dict(*local)) gives them those of a Sequential of
// this process, whose parameters have the same names.
class SequentialImpl : public torch::nn::SequentialImpl {
 public:
  // Without layers.
  SequentialImpl() = default;
  // Makes it of layers that were received. Throws InvalidArgument for a layer without a module, or for two
  // layers with one name.
  explicit SequentialImpl(const Layers& layers);
  // Runs the layers one after the other.
  at::Tensor forward(const at::Tensor& input) { return torch::nn::SequentialImpl::forward(input); }
};
GRADWIRE_RPC_CONSTRUCTOR(SequentialImpl, Layers)

namespace sequential_internal {

using MakeLayer = absl::StatusOr<torch::nn::AnyModule> (*)(const proto::Value& arguments, Decoder& decoder);
// Registers a class. Called during static initialisation.
bool add_layer(const std::string& type, MakeLayer make);

template <class M, class... P>
absl::StatusOr<torch::nn::AnyModule> make_layer(const proto::Value& in, Decoder& decoder) {
  using Arguments = std::tuple<std::decay_t<P>...>;
  GRADWIRE_ASSIGN_OR_RETURN(Arguments arguments, decode_value<Arguments>(in, decoder));
  return torch::nn::AnyModule(std::apply(
      [](auto&&... argument) { return std::make_shared<M>(std::move(argument)...); }, std::move(arguments)));
}

template <class M, class... P>
bool add_layer() {
  static_assert(
      ConstructorAgrees<M, P...>,
      "GRADWIRE_RPC_CONSTRUCTOR and the registration of the layer must have the same parameter types");
  return add_layer(cpp_type_name<M>(), &make_layer<M, P...>);
}

// The description of a layer, by the parameter types of its constructor.
template <class M, class C>
struct DescribeLayer {
  static_assert(
      !std::is_same_v<C, UndeclaredConstructor>,
      "the constructor of the layer is not declared: include \"gradwire/rpc/stock_modules.h\", or the header "
      "with GRADWIRE_RPC_CONSTRUCTOR for the module, and register it with GRADWIRE_RPC_LAYER");
};
template <class M, class... P>
struct DescribeLayer<M, ConstructorTypes<P...>> {
  template <class... A>
  static Layer make(A&&... arguments) {
    using Arguments = std::tuple<P...>;
    if constexpr (call_internal::kMakesParameter<ConstructorTypes<P...>, A...>) {
      return of(Arguments(P(std::forward<A>(arguments)...)...));
    } else {
      static_assert(sizeof...(A) == sizeof...(P),
                    "the number of arguments differs from the number of parameters of the constructor");
      return of(Arguments(std::forward<A>(arguments)...));
    }
  }

 private:
  static Layer of(std::tuple<P...> arguments) {
    return Layer(cpp_type_name<M>(), [arguments = std::move(arguments)](Encoder& encoder, proto::Value& out) {
      return encode_value<std::tuple<P...>>(arguments, encoder, out);
    });
  }
};

}  // namespace sequential_internal

// Describes a layer: the class of a module, registered with GRADWIRE_RPC_LAYER, and the arguments of its
// constructor. Makes nothing yet.
template <class M, class C = DeclaredConstructor<M>, class... A>
Layer layer(A&&... arguments) {
  return sequential_internal::DescribeLayer<M, C>::make(std::forward<A>(arguments)...);
}

}  // namespace gradwire::rpc
