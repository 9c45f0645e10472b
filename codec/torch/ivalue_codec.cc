// Values nest: lists, tuples and dictionaries contain values. encode_at() and decode_at() recurse and count
// the depth, so that a hostile value, or a list that contains itself, cannot overflow the stack.

#include "gradwire/codec/torch/ivalue_codec.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/ivalue_type.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/security/limits.h"

namespace gradwire::rpc {
namespace {

absl::Status encode_at(const c10::IValue& value, int depth, Encoder& encoder, proto::Value& out);
absl::StatusOr<c10::IValue> decode_at(const proto::Value& in, int depth, Decoder& decoder);

constinit IValueReferences installed_references;

absl::Status too_deep() {
  return absl::InvalidArgumentError(
      absl::StrCat("a value is nested too deep: the limit is ", kMaxValueDepth, " levels"));
}

absl::Status encode_list(const c10::IValue& value, int depth, Encoder& encoder, proto::Value& out) {
  const c10::List<c10::IValue> list = value.toList();
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  const c10::TypePtr type = list.elementType();
  // Numbers in a list of numbers are packed, which takes a fraction of a Value for each.
  if (type->kind() == c10::TypeKind::IntType) {
    auto& integers = *out.mutable_integers()->mutable_values();
    integers.Reserve(static_cast<int>(elements.size()));
    for (const c10::IValue& element : elements) integers.Add(element.toInt());
    return absl::OkStatus();
  }
  if (type->kind() == c10::TypeKind::FloatType) {
    auto& reals = *out.mutable_reals()->mutable_values();
    reals.Reserve(static_cast<int>(elements.size()));
    for (const c10::IValue& element : elements) reals.Add(element.toDouble());
    return absl::OkStatus();
  }
  proto::ValueList& values = *out.mutable_list();
  // The receiver takes the type of the elements from the elements, if that is unambiguous. The type is sent
  // otherwise: for empty lists, and for types that an element does not show, such as Optional[int].
  const bool shown =
      !elements.empty() &&
      (type->kind() == c10::TypeKind::TensorType || type->kind() == c10::TypeKind::BoolType ||
       type->kind() == c10::TypeKind::StringType || type->kind() == c10::TypeKind::ComplexType);
  if (!shown) {
    GRADWIRE_ASSIGN_OR_RETURN(*values.mutable_element_type(), type_to_text(*type));
  }
  for (const c10::IValue& element : elements) {
    GRADWIRE_RETURN_IF_ERROR(encode_at(element, depth + 1, encoder, *values.add_values()));
  }
  return absl::OkStatus();
}

// The types of keys and values are always sent.
absl::Status encode_dict(const c10::IValue& value, int depth, Encoder& encoder, proto::Value& out) {
  const c10::Dict<c10::IValue, c10::IValue> dict = value.toGenericDict();
  proto::ValueMap& map = *out.mutable_map();
  GRADWIRE_ASSIGN_OR_RETURN(*map.mutable_key_type(), type_to_text(*dict.keyType()));
  GRADWIRE_ASSIGN_OR_RETURN(*map.mutable_value_type(), type_to_text(*dict.valueType()));
  for (const auto& entry : dict) {
    if (entry.key().isTensor())
      return absl::InvalidArgumentError("a dictionary whose keys are tensors cannot be sent");
    GRADWIRE_RETURN_IF_ERROR(encode_at(entry.key(), depth + 1, encoder, *map.add_keys()));
    GRADWIRE_RETURN_IF_ERROR(encode_at(entry.value(), depth + 1, encoder, *map.add_values()));
  }
  return absl::OkStatus();
}

absl::Status encode_at(const c10::IValue& value, int depth, Encoder& encoder, proto::Value& out) {
  if (depth > kMaxValueDepth) return too_deep();
  const Nesting::Step step(encoder.nesting(), out);
  GRADWIRE_RETURN_IF_ERROR(step.status());
  if (value.isTensor()) return Codec<at::Tensor>::encode(value.toTensor(), encoder, out);
  if (value.isNone()) {
    out.set_none(true);
  } else if (value.isBool()) {
    out.set_boolean(value.toBool());
  } else if (value.isInt()) {
    out.set_integer(value.toInt());
  } else if (value.isDouble()) {
    out.set_real(value.toDouble());
  } else if (value.isComplexDouble()) {
    return Codec<c10::complex<double>>::encode(value.toComplexDouble(), encoder, out);
  } else if (value.isString()) {
    out.set_text(value.toStringRef());
  } else if (value.isDevice()) {
    out.set_device(value.toDevice().str());
  } else if (value.isList()) {
    return encode_list(value, depth, encoder, out);
  } else if (value.isTuple()) {
    proto::ValueList& values = *out.mutable_tuple();
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      GRADWIRE_RETURN_IF_ERROR(encode_at(element, depth + 1, encoder, *values.add_values()));
    }
  } else if (value.isGenericDict()) {
    return encode_dict(value, depth, encoder, out);
  } else if (value.isRRef() && installed_references.handle_of != nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::shared_ptr<RRefHandle> handle,
                              installed_references.handle_of(value));
    GRADWIRE_ASSIGN_OR_RETURN(const uint32_t index, encoder.add_reference(handle));
    out.set_reference(index);
  } else {
    // For an object the name of its class says more.
    std::string type = value.tagKind();
    if (value.isObject()) type = value.type()->repr_str();
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", type, " cannot be sent to another worker"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<c10::IValue>> decode_elements(
    const google::protobuf::RepeatedPtrField<proto::Value>& values, int depth, Decoder& decoder) {
  std::vector<c10::IValue> elements;
  elements.reserve(static_cast<std::size_t>(values.size()));
  for (const proto::Value& value : values) {
    GRADWIRE_ASSIGN_OR_RETURN(c10::IValue element, decode_at(value, depth + 1, decoder));
    elements.push_back(std::move(element));
  }
  return elements;
}

// The element type that the sender names or, without one, the common type of the elements. All elements are
// checked against it.
absl::StatusOr<c10::TypePtr> element_type(const std::string& text, const std::vector<c10::IValue>& elements) {
  if (text.empty()) return common_type(elements);
  GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr type, type_from_text(text));
  for (const c10::IValue& element : elements) {
    if (!is_element(element, *type)) {
      return absl::InvalidArgumentError(
          absl::StrCat("wrong element type in a container: got ", element.tagKind(), ", expected ", text));
    }
  }
  return type;
}

absl::StatusOr<c10::IValue> decode_list(const proto::ValueList& in, int depth, Decoder& decoder) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<c10::IValue> elements, decode_elements(in.values(), depth, decoder));
  GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr type, element_type(in.element_type(), elements));
  c10::impl::GenericList list(type);
  list.reserve(elements.size());
  for (c10::IValue& element : elements) list.push_back(std::move(element));
  return c10::IValue(std::move(list));
}

bool can_be_key(const c10::IValue& value) {
  return value.isInt() || value.isString() || value.isBool() || value.isDouble() || value.isComplexDouble() ||
         value.isDevice();
}

absl::StatusOr<c10::IValue> decode_dict(const proto::ValueMap& in, int depth, Decoder& decoder) {
  if (in.keys_size() != in.values_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a dictionary has ", in.keys_size(), " keys but ", in.values_size(), " values"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<c10::IValue> keys, decode_elements(in.keys(), depth, decoder));
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<c10::IValue> values, decode_elements(in.values(), depth, decoder));
  GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr key_type, element_type(in.key_type(), keys));
  GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr value_type, element_type(in.value_type(), values));
  c10::impl::GenericDict dict(key_type, value_type);
  dict.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    // libtorch throws for other keys, or cannot hash them.
    if (!can_be_key(keys[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value of type ", keys[i].tagKind(), " cannot be a key of a dictionary"));
    }
    // If the sender repeats a key, the last value stays.
    dict.insert_or_assign(std::move(keys[i]), std::move(values[i]));
  }
  return c10::IValue(std::move(dict));
}

absl::StatusOr<c10::IValue> decode_at(const proto::Value& in, int depth, Decoder& decoder) {
  if (depth > kMaxValueDepth) return too_deep();
  const Nesting::Step step(decoder.nesting(), in);
  GRADWIRE_RETURN_IF_ERROR(step.status());
  switch (in.kind_case()) {
    case proto::Value::kNone:
      return c10::IValue();
    case proto::Value::kBoolean:
      return c10::IValue(in.boolean());
    case proto::Value::kInteger:
      return c10::IValue(static_cast<int64_t>(in.integer()));
    case proto::Value::kReal:
      return c10::IValue(in.real());
    case proto::Value::kComplex:
      return c10::IValue(c10::complex<double>(in.complex().real(), in.complex().imaginary()));
    case proto::Value::kText:
      return c10::IValue(in.text());
    case proto::Value::kTensor:
    case proto::Value::kUndefinedTensor: {
      GRADWIRE_ASSIGN_OR_RETURN(at::Tensor tensor, Codec<at::Tensor>::decode(in, decoder));
      return c10::IValue(std::move(tensor));
    }
    case proto::Value::kDevice: {
      GRADWIRE_ASSIGN_OR_RETURN(c10::Device device, Codec<c10::Device>::decode(in, decoder));
      return c10::IValue(device);
    }
    // TorchScript has no types for these three; it represents them by integers.
    case proto::Value::kDtype:
      return c10::IValue(int64_t{in.dtype()});
    case proto::Value::kLayout:
      return c10::IValue(int64_t{in.layout()});
    case proto::Value::kMemoryFormat:
      return c10::IValue(int64_t{in.memory_format()});
    case proto::Value::kIntegers:
      return c10::IValue(std::vector<int64_t>(in.integers().values().begin(), in.integers().values().end()));
    case proto::Value::kReals:
      return c10::IValue(std::vector<double>(in.reals().values().begin(), in.reals().values().end()));
    case proto::Value::kList:
      return decode_list(in.list(), depth, decoder);
    case proto::Value::kTuple: {
      GRADWIRE_ASSIGN_OR_RETURN(std::vector<c10::IValue> elements,
                                decode_elements(in.tuple().values(), depth, decoder));
      return c10::IValue(c10::ivalue::Tuple::create(std::move(elements)));
    }
    case proto::Value::kMap:
      return decode_dict(in.map(), depth, decoder);
    case proto::Value::kReference: {
      if (installed_references.value_of == nullptr) return wrong_kind("IValue", in);
      GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<RRefHandle> handle, decoder.reference(in.reference()));
      return installed_references.value_of(std::move(handle));
    }
    default:
      return wrong_kind("IValue", in);
  }
}

}  // namespace

void set_ivalue_references(const IValueReferences& references) { installed_references = references; }

absl::Status Codec<c10::IValue>::encode(const c10::IValue& value, Encoder& encoder, proto::Value& out) {
  return encode_at(value, 0, encoder, out);
}

absl::Status Codec<c10::IValue>::encode(c10::IValue&& value, Encoder& encoder, proto::Value& out) {
  if (value.isTensor()) return Codec<at::Tensor>::encode(std::move(value).toTensor(), encoder, out);
  // `taken` is destroyed when this function returns. Then the encoder has the only handles to tensors that
  // are not held elsewhere.
  const c10::IValue taken = std::move(value);
  return encode_at(taken, 0, encoder, out);
}

absl::StatusOr<c10::IValue> Codec<c10::IValue>::decode(const proto::Value& in, Decoder& decoder) {
  return decode_at(in, 0, decoder);
}

}  // namespace gradwire::rpc
