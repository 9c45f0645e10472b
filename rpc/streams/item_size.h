#pragma once

#include <concepts>
#include <cstdint>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gradwire/codec/codec.h"

namespace gradwire::rpc::stream_internal {

// The assumed size of an item whose type does not show it. It is large, so that a message with the items of
// one take remains far below Limits::max_header_bytes.
inline constexpr uint64_t kUnknownItemBytes = uint64_t{64} << 10;
// Added for each value, roughly what a message needs beside its bytes.
inline constexpr uint64_t kValueBytes = 8;

template <class T>
inline constexpr bool kIsTupleLike = false;
template <class... T>
inline constexpr bool kIsTupleLike<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool kIsTupleLike<std::pair<A, B>> = true;

// Roughly the bytes that the item takes in memory and in a message, for flow control. A Codec of a user's
// type may have
//   static uint64_t byte_size(const T& value);
template <class T>
uint64_t item_bytes(const T& item) {
  if constexpr (requires {
                  { Codec<T>::byte_size(item) } -> std::convertible_to<uint64_t>;
                }) {
    return kValueBytes + Codec<T>::byte_size(item);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    return kValueBytes;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return kValueBytes + item.size();
  } else if constexpr (requires {
                         item.nbytes();
                         item.defined();
                       }) {
    return kValueBytes + (item.defined() ? static_cast<uint64_t>(item.nbytes()) : 0);
  } else if constexpr (requires { item.ByteSizeLong(); }) {
    return kValueBytes + item.ByteSizeLong();
  } else if constexpr (kIsTupleLike<T>) {
    return std::apply([](const auto&... parts) { return (kValueBytes + ... + item_bytes(parts)); }, item);
  } else if constexpr (requires {
                         item.has_value();
                         *item;
                       }) {
    return kValueBytes + (item.has_value() ? item_bytes(*item) : 0);
  } else if constexpr (std::ranges::range<const T>) {
    using Part = std::remove_cvref_t<std::ranges::range_reference_t<const T>>;
    uint64_t bytes = kValueBytes;
    if constexpr (std::is_arithmetic_v<Part> && std::ranges::sized_range<const T>) {
      bytes += kValueBytes * std::ranges::size(item);
    } else {
      for (const auto& part : item) bytes += item_bytes(static_cast<const Part&>(part));
    }
    return bytes;
  } else {
    return kUnknownItemBytes;
  }
}

}  // namespace gradwire::rpc::stream_internal
