#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/callee/server_call.h"

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
namespace gradwire::rpc::stream_internal {

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
  std::vector<T> items;
  bool last = false;
};

// Encodes a batch, for the TypeOps of answers. The batch is consumed, because nobody else has it.
template <class T>
absl::Status encode_batch(const void* value, Encoder& encoder, proto::Value& out) {
  auto& batch = *static_cast<Batch<T>*>(const_cast<void*>(value));
  proto::ValueList& list = *out.mutable_list();
  GRADWIRE_RETURN_IF_ERROR(encode_value<std::vector<T>>(std::move(batch.items), encoder, *list.add_values()));
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

template <class T>
absl::StatusOr<Batch<T>> decode_batch(const proto::Value& in, Decoder& decoder) {
  const proto::ValueList* list = elements_of(in);
  if (list == nullptr || list->values_size() != 2)
    return wrong_kind(absl::StrCat("StreamBatch[", codec_type_name<T>(), "]"), in);
  Batch<T> batch;
  GRADWIRE_ASSIGN_OR_RETURN(batch.items, decode_value<std::vector<T>>(list->values(0), decoder));
  GRADWIRE_ASSIGN_OR_RETURN(batch.last, decode_value<bool>(list->values(1), decoder));
  return batch;
}

}  // namespace gradwire::rpc::stream_internal
