#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/registry/server_call.h"

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

// Whether moving and destroying a T runs no code of a user.
template <class T>
inline constexpr bool kMovesQuietly = std::is_trivially_copyable_v<T> || std::is_same_v<T, std::string>;

// An item that the producer has made and no message contains yet. Moving it runs no code of a user, so it may
// be moved under a lock: a value whose own moves may be code of a user is behind a pointer.
template <class T>
class HeldItem {
 public:
  // May throw what the move of T and its Codec's byte_size() throw.
  explicit HeldItem(T&& value) : value_(hold(std::move(value))), bytes_(item_bytes<T>(**this)) {
    fence_ = record_stream_fence_of(**this);
  }

  T& operator*() {
    if constexpr (kMovesQuietly<T>) {
      return value_;
    } else {
      return *value_;
    }
  }
  uint64_t bytes() const { return bytes_; }
  // After it other threads may read the item; may be nullptr.
  StreamFencePtr take_fence() { return std::move(fence_); }

 private:
  using Held = std::conditional_t<kMovesQuietly<T>, T, std::unique_ptr<T>>;
  static Held hold(T&& value) {
    if constexpr (kMovesQuietly<T>) {
      return std::move(value);
    } else {
      return std::make_unique<T>(std::move(value));
    }
  }

  Held value_;
  uint64_t bytes_;
  StreamFencePtr fence_;
};

// How a stream of results travels. It needs no messages of its own:
//
//   1. The reader calls the function with remote(): the value that stays at the callee is the stream. Its
//   type
//      is "Stream[T]", where T is the name of the items' type on the wire. The signature of the function is
//      "Stream[str](str,int64)", for example.
//   2. The reader calls the method "Stream[T].take" of this value, several times in advance. The signature is
//      "StreamBatch[T](uint64,uint64,uint64)"; the arguments are the sequence number of the take (from 0,
//      each once) and the most items and bytes of its answer.
//   3. The answer is a list of two values: the items, as a list[T], and a bool, whether the stream has ended
//      after them. A stream that ends with an error answers the take after its last item with this error.
//   4. Dropping the last reference to the value, or cancelling a take, cancels the stream.
//
// So a program that knows only the signature of the function, as text, can read its stream: the part before
// "(" is the type of the value, and the functions below give the rest.

inline constexpr absl::string_view kStreamPrefix = "Stream[";
// "Stream[T]", the type of the value, as in references. `item`: the name of T on the wire.
inline std::string stream_type(const std::string& item) { return absl::StrCat(kStreamPrefix, item, "]"); }
// The name of T, for the type of a stream; nullopt for another type.
inline std::optional<std::string> stream_item(absl::string_view type) {
  if (!absl::ConsumePrefix(&type, kStreamPrefix) || !absl::ConsumeSuffix(&type, "]")) return std::nullopt;
  return std::string(type);
}
// "Stream[T].take", the name of the method. `stream`: the type of the value.
inline std::string take_name(const std::string& stream) { return absl::StrCat(stream, ".take"); }
// The signature of the method.
inline std::string take_signature(const std::string& item) {
  return absl::StrCat("StreamBatch[", item, "](uint64,uint64,uint64)");
}

// The items of one answer.
template <class T>
struct Batch {
  std::vector<HeldItem<T>> items;
  bool last = false;
  // The function that makes the stream, for errors.
  std::string callee;
};

// Encodes items as the Codec of a vector does.
template <class T>
absl::Status encode_items(std::vector<HeldItem<T>>& items, Encoder& encoder, proto::Value& out) {
  const auto pack = [&items](auto& values) {
    values.Reserve(static_cast<int>(items.size()));
    for (HeldItem<T>& item : items) values.Add(*item);
  };
  if constexpr (Codec<std::vector<T>>::kPackedIntegers) {
    pack(*out.mutable_integers()->mutable_values());
  } else if constexpr (Codec<std::vector<T>>::kPackedReals) {
    pack(*out.mutable_reals()->mutable_values());
  } else {
    proto::ValueList& list = *out.mutable_list();
    for (HeldItem<T>& item : items)
      GRADWIRE_RETURN_IF_ERROR(encode_value<T>(std::move(*item), encoder, *list.add_values()));
  }
  return absl::OkStatus();
}

// Encodes a batch, for the TypeOps of answers. The batch is consumed, because nobody else has it.
template <class T>
absl::Status encode_batch(const void* value, Encoder& encoder, proto::Value& out) {
  auto& batch = *static_cast<Batch<T>*>(const_cast<void*>(value));
  proto::ValueList& list = *out.mutable_list();
  absl::Status status;
  try {
    status = encode_items<T>(batch.items, encoder, *list.add_values());
  } catch (...) {
    // The Codec or a move of the user's type has thrown.
    status = status_from_exception(std::current_exception());
  }
  if (!status.ok()) return with_context(status, absl::StrCat("encoding an item of \"", batch.callee, "\""));
  list.add_values()->set_boolean(batch.last);
  return absl::OkStatus();
}

template <class T>
const TypeOps* batch_ops() {
  static const TypeOps ops = {
      [] { return absl::StrCat("StreamBatch[", codec_type_name<T>(), "]"); },
      &encode_batch<T>,
      [] { return false; },
      []() -> const std::type_info& { return typeid(Batch<T>); },
  };
  return &ops;
}

// The number of items in the list of an answer; nullopt for a value that is not a list. Numbers may be
// packed.
inline std::optional<std::size_t> items_in(const proto::Value& items) {
  if (const proto::ValueList* list = elements_of(items)) return list->values_size();
  if (items.kind_case() == proto::Value::kIntegers) return items.integers().values_size();
  if (items.kind_case() == proto::Value::kReals) return items.reals().values_size();
  return std::nullopt;
}
// One of these items. `unpacked` contains it if it was packed. REQUIRES: index < *items_in(items)
inline const proto::Value& item_at(const proto::Value& items, std::size_t index, proto::Value& unpacked) {
  const int at = static_cast<int>(index);
  if (const proto::ValueList* list = elements_of(items)) return list->values(at);
  if (items.kind_case() == proto::Value::kIntegers) {
    unpacked.set_integer(items.integers().values(at));
  } else {
    unpacked.set_real(items.reals().values(at));
  }
  return unpacked;
}

}  // namespace gradwire::rpc::stream_internal
