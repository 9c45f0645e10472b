// Types of elements travel as text, for example "Dict[str,List[Tensor]]". append_type() writes a type,
// parse() is a recursive-descent parser for the same grammar:
//
//   type = name | name "[" [ type { "," type } ] "]"

#include "gradwire/codec/torch/ivalue_type.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/security/limits.h"

namespace gradwire::rpc {
namespace {

// Bounds the work of parsing a hostile text, together with kMaxValueDepth.
constexpr std::size_t kMaxTextSize = 1024;

absl::Status unknown_type(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("cannot parse the element type \"", text, "\""));
}

absl::Status append_type(const c10::Type& type, int depth, std::string& out) {
  if (depth > kMaxValueDepth) return absl::InvalidArgumentError("a type is nested too deep");
  const auto contained = [&](absl::string_view name) -> absl::Status {
    absl::StrAppend(&out, name, "[");
    const char* separator = "";
    for (const c10::TypePtr& part : type.containedTypes()) {
      out.append(separator);
      separator = ",";
      GRADWIRE_RETURN_IF_ERROR(append_type(*part, depth + 1, out));
    }
    out.append("]");
    return absl::OkStatus();
  };
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      out.append("Tensor");
      return absl::OkStatus();
    case c10::TypeKind::IntType:
      out.append("int");
      return absl::OkStatus();
    case c10::TypeKind::FloatType:
      out.append("float");
      return absl::OkStatus();
    case c10::TypeKind::BoolType:
      out.append("bool");
      return absl::OkStatus();
    case c10::TypeKind::StringType:
      out.append("str");
      return absl::OkStatus();
    case c10::TypeKind::ComplexType:
      out.append("complex");
      return absl::OkStatus();
    case c10::TypeKind::NumberType:
      out.append("number");
      return absl::OkStatus();
    case c10::TypeKind::DeviceObjType:
      out.append("Device");
      return absl::OkStatus();
    case c10::TypeKind::NoneType:
      out.append("None");
      return absl::OkStatus();
    case c10::TypeKind::AnyType:
      out.append("Any");
      return absl::OkStatus();
    case c10::TypeKind::ListType:
      return contained("List");
    case c10::TypeKind::OptionalType: {
      out.append("Optional[");
      GRADWIRE_RETURN_IF_ERROR(
          append_type(*type.expectRef<c10::OptionalType>().getElementType(), depth + 1, out));
      out.append("]");
      return absl::OkStatus();
    }
    case c10::TypeKind::RRefType:
      return contained("RRef");
    case c10::TypeKind::DictType:
      return contained("Dict");
    case c10::TypeKind::TupleType:
      return contained("Tuple");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("an element of type ", type.repr_str(), " cannot be sent to another worker"));
  }
}

// Parses one type at the front of `text` and removes it from `text`.
absl::StatusOr<c10::TypePtr> parse(absl::string_view& text, int depth) {
  if (depth > kMaxValueDepth) return absl::InvalidArgumentError("a type is nested too deep");
  const absl::string_view word = text.substr(0, text.find_first_of("[],"));
  text.remove_prefix(word.size());
  static const auto* const plain = new std::vector<std::pair<absl::string_view, c10::TypePtr>>{
      {"Tensor", c10::TensorType::get()}, {"int", c10::IntType::get()},
      {"float", c10::FloatType::get()},   {"bool", c10::BoolType::get()},
      {"str", c10::StringType::get()},    {"complex", c10::ComplexType::get()},
      {"number", c10::NumberType::get()}, {"Device", c10::DeviceObjType::get()},
      {"None", c10::NoneType::get()},     {"Any", c10::AnyType::get()}};
  for (const auto& [name, type] : *plain) {
    if (word == name) return type;
  }
  std::vector<c10::TypePtr> parts;
  if (!absl::ConsumePrefix(&text, "[")) return unknown_type(word);
  while (!absl::ConsumePrefix(&text, "]")) {
    if (!parts.empty() && !absl::ConsumePrefix(&text, ",")) return unknown_type(word);
    GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr part, parse(text, depth + 1));
    parts.push_back(std::move(part));
  }
  if (word == "RRef" && parts.size() == 1) return c10::TypePtr(c10::RRefType::create(parts[0]));
  if (word == "List" && parts.size() == 1) return c10::TypePtr(c10::ListType::create(parts[0]));
  if (word == "Optional" && parts.size() == 1) {
    // libtorch compares Optional[Tensor] by address, so the shared instance must be used.
    if (parts[0]->kind() == c10::TypeKind::TensorType) return c10::OptionalType::get(parts[0]);
    return c10::TypePtr(c10::OptionalType::create(parts[0]));
  }
  if (word == "Tuple") return c10::TypePtr(c10::TupleType::create(std::move(parts)));
  if (word == "Dict" && parts.size() == 2) {
    switch (parts[0]->kind()) {  // DictType::create throws for other keys.
      case c10::TypeKind::IntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType:
      case c10::TypeKind::StringType:
      case c10::TypeKind::ComplexType:
      case c10::TypeKind::DeviceObjType:
        return c10::TypePtr(c10::DictType::create(parts[0], parts[1]));
      default:
        break;
    }
  }
  return unknown_type(word);
}

}  // namespace

absl::StatusOr<std::string> type_to_text(const c10::Type& type) {
  std::string text;
  GRADWIRE_RETURN_IF_ERROR(append_type(type, 0, text));
  if (text.size() > kMaxTextSize)
    return absl::InvalidArgumentError("the type of an element is too long to be sent");
  return text;
}

absl::StatusOr<c10::TypePtr> type_from_text(absl::string_view text) {
  if (text.size() > kMaxTextSize) return absl::InvalidArgumentError("the type of an element is too long");
  GRADWIRE_ASSIGN_OR_RETURN(c10::TypePtr type, parse(text, 0));
  if (!text.empty()) return unknown_type(text);
  return type;
}

// Whether a container with this element type may hold the value.
bool is_element(const c10::IValue& value, const c10::Type& type) {
  switch (type.kind()) {  // The frequent types are checked without creating the type of the value.
    case c10::TypeKind::AnyType:
      return true;
    case c10::TypeKind::TensorType:
      return value.isTensor();
    case c10::TypeKind::IntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::OptionalType:
      return value.isNone() || is_element(value, *type.expectRef<c10::OptionalType>().getElementType());
    default:
      return value.type<c10::Type>()->isSubtypeOf(type);
  }
}

// Returns the type of the first value if all others are elements of it, and Any otherwise.
c10::TypePtr common_type(c10::ArrayRef<c10::IValue> values) {
  if (values.empty()) return c10::AnyType::get();
  // The type of a tensor value also contains its shape and device.
  const c10::TypePtr first = values[0].isTensor() ? c10::TensorType::get() : values[0].type<c10::Type>();
  for (const c10::IValue& value : values.slice(1)) {
    if (!is_element(value, *first)) return c10::AnyType::get();
  }
  return first;
}

}  // namespace gradwire::rpc
