#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::gateway {

enum class TypeKind {
  kVoid,
  kBool,
  kInteger,  // With Type::bits and Type::is_signed; an enumeration is its integer.
  kReal,
  kComplex,
  kText,
  kTensor,
  kScalar,
  kScalarType,
  kDevice,
  kStatus,
  kAny,  // IValue
  kOptional,
  kList,
  kTuple,
  kMap,
  kReference,
  kMessage,
  // A type of the program, or one that the gateway does not convert. Its values are passed on as they are.
  kOther,
};

// A type of a signature, "list[optional[Tensor]]".
struct Type {
  TypeKind kind = TypeKind::kOther;
  // As in the signature.
  std::string name;
  int bits = 0;
  bool is_signed = false;
  // The types in brackets. For a map: the key, then the value.
  std::vector<Type> arguments;
  // For a reference and a message: the name in brackets.
  std::string inner;
};

struct Signature {
  Type result;
  std::vector<Type> parameters;
};

// Returns a type that any value fits, as the parameters of operators have.
const Type& any_type();

// The error of a value that is nested deeper than kMaxValueDepth.
absl::Status too_deep();

// Parses a type, or a signature "RESULT(PARAMETER,...)". The text comes from another worker: InvalidArgument
// if it is malformed, nested deeper than kMaxValueDepth, or longer than 64 KiB.
absl::StatusOr<Type> parse_type(absl::string_view text);
absl::StatusOr<Signature> parse_signature(absl::string_view text);

}  // namespace gradwire::gateway
