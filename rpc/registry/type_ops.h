#pragma once

#include <string>
#include <type_traits>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/type_name.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {

// Set by GRADWIRE_RPC_SERIAL_CLASS: on each object of the class, one method runs at a time.
template <class T>
inline bool serial_class = false;

// The name of type T in references (Reference.type).
template <class T>
const std::string& value_type_name() {
  static const std::string name = [] {
    if constexpr (Sendable<T>) {
      return std::string(Codec<T>::type_name());
    } else {
      return cpp_type_name<T>();
    }
  }();
  return name;
}

template <class T>
const TypeOps* type_ops() {
  static const TypeOps ops = {
      [] { return value_type_name<T>(); },
      [] {
        if constexpr (Sendable<T>) {
          return +[](const void* value, Encoder& encoder, proto::Value& out) {
            return Codec<T>::encode(*static_cast<const T*>(value), encoder, out);
          };
        } else {
          return static_cast<absl::Status (*)(const void*, Encoder&, proto::Value&)>(nullptr);
        }
      }(),
      [] { return serial_class<T>; },
      []() -> const std::type_info& { return typeid(T); },
      [](void* value) -> torch::nn::Module* {
        if constexpr (std::is_convertible_v<T*, torch::nn::Module*>) {
          return static_cast<T*>(value);
        } else {
          return nullptr;
        }
      },
  };
  return &ops;
}

}  // namespace gradwire::rpc
