#include "gradwire/rpc/torch/schema_match.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Device.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

using c10::IValue;
using c10::TypeKind;

std::optional<IValue> convert(const IValue& value, const c10::Type& type, bool fixed_length,
                              Conversions conversions);

bool is_number(const IValue& value) { return value.isInt() || value.isDouble() || value.isComplexDouble(); }

// Returns the number that `value` means under Conversions::kImplicit: an int, a double or a complex. Returns
// nullopt if `value` cannot be used as a number.
std::optional<IValue> implied_number(const IValue& value) {
  if (value.isBool()) return IValue(static_cast<int64_t>(value.toBool()));
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0 &&
      !value.toTensor().requires_grad()) {
    const c10::Scalar item = value.toTensor().item();
    if (item.isBoolean()) return IValue(static_cast<int64_t>(item.toBool()));
    return IValue(item);
  }
  if (is_number(value)) return value;
  return std::nullopt;
}

std::optional<IValue> convert_number(const IValue& value, TypeKind kind, Conversions conversions) {
  const auto fits = [kind](const IValue& number) {
    return kind == TypeKind::NumberType || (kind == TypeKind::IntType && number.isInt()) ||
           (kind == TypeKind::FloatType && number.isDouble()) ||
           (kind == TypeKind::ComplexType && number.isComplexDouble());
  };
  // An exact match comes first under both kinds of conversion.
  if (is_number(value) && fits(value)) return value;
  if (conversions == Conversions::kNone) return std::nullopt;
  // A Scalar can hold a bool as it is.
  if (kind == TypeKind::NumberType && value.isBool()) return value;
  const std::optional<IValue> number = implied_number(value);
  if (!number || fits(*number)) return number;
  if (kind == TypeKind::FloatType && number->isInt()) return IValue(static_cast<double>(number->toInt()));
  if (kind == TypeKind::ComplexType && !number->isComplexDouble()) {
    return IValue(
        c10::complex<double>(number->isInt() ? static_cast<double>(number->toInt()) : number->toDouble()));
  }
  return std::nullopt;
}

std::optional<IValue> convert_list(const IValue& value, const c10::Type& type, bool fixed_length,
                                   Conversions conversions) {
  const c10::TypePtr& element_type = type.expectRef<c10::ListType>().getElementType();
  // The same type: share the list. Comparing the kinds first is cheap and decides most cases.
  if (value.isList() && value.toList().elementType()->kind() == element_type->kind() &&
      *value.toList().elementType() == *element_type) {
    return value;
  }
  c10::ArrayRef<IValue> elements;
  IValue single;
  if (value.isList()) {
    elements = value.toListRef();
  } else if (value.isTuple()) {
    elements = value.toTupleRef().elements();
  } else if (fixed_length && !value.isTensor()) {
    single = value;
    elements = c10::ArrayRef<IValue>(single);
  } else {
    return std::nullopt;
  }
  c10::impl::GenericList list(element_type);
  // Convert element by element: an int list may be wanted where a tuple was sent.
  list.reserve(elements.size());
  for (const IValue& element : elements) {
    std::optional<IValue> converted = convert(element, *element_type, false, conversions);
    if (!converted) return std::nullopt;
    list.push_back(*std::move(converted));
  }
  return IValue(std::move(list));
}

std::optional<IValue> convert(const IValue& value, const c10::Type& type, bool fixed_length,
                              Conversions conversions) {
  switch (type.kind()) {
    case TypeKind::TensorType:
      return value.isTensor() ? std::optional<IValue>(value) : std::nullopt;
    case TypeKind::OptionalType:
      if (value.isNone()) return value;
      return convert(value, *type.expectRef<c10::OptionalType>().getElementType(), fixed_length, conversions);
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::ComplexType:
    case TypeKind::NumberType:
      return convert_number(value, type.kind(), conversions);
    case TypeKind::BoolType:
      return value.isBool() ? std::optional<IValue>(value) : std::nullopt;
    case TypeKind::StringType:
      return value.isString() ? std::optional<IValue>(value) : std::nullopt;
    case TypeKind::AnyType:
      return value;
    case TypeKind::ListType:
      return convert_list(value, type, fixed_length, conversions);
    case TypeKind::DeviceObjType:
      if (value.isDevice()) return value;
      if (value.isString() && conversions == Conversions::kImplicit) {
        try {
          return IValue(c10::Device(value.toStringRef()));
        } catch (const std::exception&) {
          return std::nullopt;
        }
      }
      return std::nullopt;
    default:
      return value.type<c10::Type>()->isSubtypeOf(type) ? std::optional<IValue>(value) : std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::vector<IValue>> match_arguments(const c10::FunctionSchema& schema,
                                                    const CallArguments& arguments, Conversions conversions) {
  const std::vector<c10::Argument>& parameters = schema.arguments();
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes at most ", parameters.size(), " arguments, got ", arguments.positional.size()));
  }
  std::vector<IValue> stack;
  stack.reserve(parameters.size());
  std::size_t keywords_used = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const c10::Argument& parameter = parameters[i];
    const IValue* given = nullptr;
    if (i < arguments.positional.size()) {
      if (parameter.kwarg_only()) {
        return absl::InvalidArgumentError(
            absl::StrCat("argument \"", parameter.name(), "\" can only be passed by keyword"));
      }
      given = &arguments.positional[i];
    }
    // There are few keywords, so a search is faster than a table.
    for (const auto& [name, value] : arguments.keywords) {
      if (name != parameter.name()) continue;
      if (given != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("argument \"", name, "\" is given twice"));
      }
      given = &value;
      ++keywords_used;
    }
    if (given == nullptr) {
      if (!parameter.default_value()) {
        return absl::InvalidArgumentError(absl::StrCat("argument \"", parameter.name(), "\" is missing"));
      }
      stack.push_back(*parameter.default_value());
      continue;
    }
    std::optional<IValue> converted =
        convert(*given, *parameter.type(), parameter.N().has_value(), conversions);
    if (!converted) {
      return absl::InvalidArgumentError(absl::StrCat("argument \"", parameter.name(), "\" takes a ",
                                                     parameter.type()->repr_str(), ", got a ",
                                                     given->tagKind()));
    }
    stack.push_back(*std::move(converted));
  }
  if (keywords_used != arguments.keywords.size()) {
    return absl::InvalidArgumentError("unknown keyword argument");
  }
  return stack;
}

}  // namespace gradwire::rpc
