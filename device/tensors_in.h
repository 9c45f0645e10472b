#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradwire::device {

// Appends the tensors in a value to `found`, for example in one that a module's forward returned. The value
// may be a tensor, or containers, maps, tuples and optionals nested in any way. Tensors inside other types
// are not found.
template <class T>
void collect_tensors(const T& value, std::vector<at::Tensor>& found) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    const at::Tensor& tensor = value;
    if (tensor.defined()) found.push_back(tensor);
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value()) collect_tensors(*value, found);
  } else if constexpr (std::ranges::input_range<const T> && std::is_class_v<T>) {
    for (const auto& each : value) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(each)>, T>) collect_tensors(each, found);
    }
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&found](const auto&... each) { (collect_tensors(each, found), ...); }, value);
  }
}

// Where on_device() and moved_as() move tensors, and whether the thread waits for copies from the host.
struct Move {
  // nullopt: tensors stay on their device.
  std::optional<at::Device> device;
  bool non_blocking = false;
  // The new dtype of float32 tensors; nullopt: they keep theirs.
  std::optional<at::ScalarType> float_dtype;
};

// The types whose tensors on_device() moves: a tensor, or vectors, arrays, optionals, maps, pairs and tuples
// of such types nested in any way.
template <class T>
struct TensorMover {
  static constexpr bool kHolds = false;
  static const T& moved(const T& value, const Move&) { return value; }
};
template <class T>
inline constexpr bool kHoldsTensors = TensorMover<std::remove_cvref_t<T>>::kHolds;

template <>
struct TensorMover<at::Tensor> {
  static constexpr bool kHolds = true;
  static at::Tensor moved(const at::Tensor& value, const Move& move) {
    if (!value.defined()) return value;
    const at::Tensor there = move.device.has_value() ? value.to(*move.device, move.non_blocking) : value;
    return move.float_dtype.has_value() && there.scalar_type() == at::kFloat ? there.to(*move.float_dtype)
                                                                             : there;
  }
};

template <class T>
struct TensorMover<std::optional<T>> {
  static constexpr bool kHolds = kHoldsTensors<T>;
  static std::optional<T> moved(const std::optional<T>& value, const Move& move) {
    if (!value.has_value()) return std::nullopt;
    return TensorMover<T>::moved(*value, move);
  }
};

// Vectors and arrays: each element of a copy is moved.
template <class List, class T>
struct ListMover {
  static constexpr bool kHolds = kHoldsTensors<T>;
  static List moved(const List& list, const Move& move) {
    List copy = list;
    for (auto& each : copy) each = TensorMover<T>::moved(each, move);
    return copy;
  }
};
template <class T>
struct TensorMover<std::vector<T>> : ListMover<std::vector<T>, T> {};
template <class T, std::size_t kSize>
struct TensorMover<std::array<T, kSize>> : ListMover<std::array<T, kSize>, T> {};

template <class Map, class T>
struct MapMover {
  static constexpr bool kHolds = kHoldsTensors<T>;
  static Map moved(const Map& map, const Move& move) {
    Map copy = map;
    for (auto& [key, each] : copy) each = TensorMover<T>::moved(each, move);
    return copy;
  }
};
template <class K, class T>
struct TensorMover<std::map<K, T>> : MapMover<std::map<K, T>, T> {};
template <class K, class T>
struct TensorMover<std::unordered_map<K, T>> : MapMover<std::unordered_map<K, T>, T> {};

template <class A, class B>
struct TensorMover<std::pair<A, B>> {
  static constexpr bool kHolds = TensorMover<A>::kHolds || TensorMover<B>::kHolds;
  static std::pair<A, B> moved(const std::pair<A, B>& value, const Move& move) {
    return {TensorMover<A>::moved(value.first, move), TensorMover<B>::moved(value.second, move)};
  }
};
template <class... T>
struct TensorMover<std::tuple<T...>> {
  using Tuple = std::tuple<T...>;
  static constexpr bool kHolds = (TensorMover<T>::kHolds || ...);
  static Tuple moved(const Tuple& value, const Move& move) {
    return each_moved(value, move, std::index_sequence_for<T...>());
  }

 private:
  template <std::size_t... kIndex>
  static Tuple each_moved(const Tuple& value, const Move& move, std::index_sequence<kIndex...>) {
    return Tuple(TensorMover<T>::moved(std::get<kIndex>(value), move)...);
  }
};

// Returns the value with its tensors moved to the device; returns a value of another type unchanged. With
// `non_blocking` the thread does not wait for the copies, so `device` must not be the CPU.
template <class T>
decltype(auto) on_device(T&& value, const at::Device& device, bool non_blocking = false) {
  if constexpr (kHoldsTensors<T>) {
    return TensorMover<std::remove_cvref_t<T>>::moved(value, Move{device, non_blocking, std::nullopt});
  } else {
    return std::forward<T>(value);
  }
}

// As on_device(), with all choices in `move`.
template <class T>
decltype(auto) moved_as(T&& value, const Move& move) {
  if constexpr (kHoldsTensors<T>) {
    return TensorMover<std::remove_cvref_t<T>>::moved(value, move);
  } else {
    return std::forward<T>(value);
  }
}

}  // namespace gradwire::device
