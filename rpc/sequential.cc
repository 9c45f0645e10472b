#include "gradwire/rpc/sequential.h"

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"

namespace gradwire::rpc {
namespace {

struct LayerClasses {
  ProcessMutex mutex;
  std::map<std::string, sequential_internal::MakeLayer> makers ABSL_GUARDED_BY(mutex);
};

LayerClasses& layer_classes() {
  static auto* const classes = new LayerClasses;
  return *classes;
}

constexpr std::size_t kMostNameBytes = 1024;

absl::StatusOr<sequential_internal::MakeLayer> find_maker(const std::string& type) {
  LayerClasses& classes = layer_classes();
  MutexLock lock(classes.mutex);
  const auto found = classes.makers.find(type);
  if (found != classes.makers.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "\"", type, "\" is not registered as a layer on this worker; the registered classes are: ",
      absl::StrJoin(classes.makers, ", ",
                    [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); }),
      "; register it with GRADWIRE_RPC_LAYER in a library that both programs link with alwayslink"));
}

}  // namespace

namespace sequential_internal {

bool add_layer(const std::string& type, MakeLayer make) {
  LayerClasses& classes = layer_classes();
  MutexLock lock(classes.mutex);
  classes.makers.emplace(type, make);
  return true;
}

}  // namespace sequential_internal

absl::Status Layer::encode_arguments(Encoder& encoder, proto::Value& out) const {
  if (encode_ != nullptr) return encode_(encoder, out);
  return absl::InvalidArgumentError(
      absl::StrCat("cannot send the layer of class ", type_, ": its module exists on this worker already"));
}

absl::Status Codec<Layer>::encode(const Layer& layer, Encoder& encoder, proto::Value& out) {
  // A tuple of the class, the name and the arguments.
  proto::ValueList& parts = *out.mutable_tuple();
  GRADWIRE_RETURN_IF_ERROR(encode_value<std::string>(layer.type(), encoder, *parts.add_values()));
  GRADWIRE_RETURN_IF_ERROR(encode_value<std::string>(layer.name(), encoder, *parts.add_values()));
  return with_context(layer.encode_arguments(encoder, *parts.add_values()),
                      absl::StrCat("layer of class ", layer.type()));
}

absl::StatusOr<Layer> Codec<Layer>::decode(const proto::Value& in, Decoder& decoder) {
  if (in.kind_case() != proto::Value::kTuple || in.tuple().values_size() != 3) return wrong_kind("Layer", in);
  const auto& parts = in.tuple().values();
  GRADWIRE_ASSIGN_OR_RETURN(std::string type, decode_value<std::string>(parts.Get(0), decoder));
  GRADWIRE_ASSIGN_OR_RETURN(std::string name, decode_value<std::string>(parts.Get(1), decoder));
  if (type.size() > kMostNameBytes || name.size() > kMostNameBytes) {
    return absl::InvalidArgumentError("malformed layer: its class or its name is too long");
  }
  GRADWIRE_ASSIGN_OR_RETURN(const sequential_internal::MakeLayer make, find_maker(type));
  absl::StatusOr<torch::nn::AnyModule> module = [&]() -> absl::StatusOr<torch::nn::AnyModule> {
    try {
      return make(parts.Get(2), decoder);
    } catch (...) {
      return status_from_exception(std::current_exception());
    }
  }();
  if (!module.ok()) return with_context(module.status(), absl::StrCat("layer of class ", type));
  return Layer(std::move(type), std::move(name), *std::move(module));
}

SequentialImpl::SequentialImpl(const Layers& layers) {
  std::set<std::string> names;
  for (const Layer& layer : layers.list()) {
    if (layer.module().is_empty()) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("cannot make a SequentialImpl: the layer of class ", layer.type(),
                       " is only a description; make a RemoteModule of it, or use torch::nn::Sequential in "
                       "this process")));
    }
    const std::string name = layer.name().empty() ? std::to_string(size()) : layer.name();
    if (!names.insert(name).second) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("cannot make a SequentialImpl: two layers have the name \"", name, "\"")));
    }
    push_back(name, layer.module());
  }
}

}  // namespace gradwire::rpc
