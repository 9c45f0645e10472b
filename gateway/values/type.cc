#include "gradwire/gateway/values/type.h"

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

constexpr std::size_t kMaxSignature = std::size_t{64} << 10;

absl::Status malformed(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("malformed type: got \"", text.substr(0, 256), "\""));
}

// Splits at the commas that are not in brackets. A name of the program's own may have brackets of every kind.
// Empty for unbalanced brackets.
absl::StatusOr<std::vector<absl::string_view>> split(absl::string_view text) {
  std::vector<absl::string_view> parts;
  if (text.empty()) return parts;
  std::string open;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '(' || c == '<') {
      open.push_back(c == '[' ? ']' : c == '(' ? ')' : '>');
    } else if (c == ']' || c == ')' || c == '>') {
      if (open.empty() || open.back() != c) return malformed(text);
      open.pop_back();
    } else if (c == ',' && open.empty()) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (!open.empty()) return malformed(text);
  parts.push_back(text.substr(begin));
  return parts;
}

// Sets the kind of a type without brackets. An unknown name is one of the program.
void set_simple(absl::string_view name, Type& type) {
  struct Simple {
    absl::string_view name;
    TypeKind kind;
  };
  static constexpr Simple kSimple[] = {
      {"void", TypeKind::kVoid},     {"bool", TypeKind::kBool},     {"str", TypeKind::kText},
      {"Tensor", TypeKind::kTensor}, {"Scalar", TypeKind::kScalar}, {"ScalarType", TypeKind::kScalarType},
      {"Device", TypeKind::kDevice}, {"Status", TypeKind::kStatus}, {"IValue", TypeKind::kAny},
  };
  for (const Simple& simple : kSimple) {
    if (simple.name == name) {
      type.kind = simple.kind;
      return;
    }
  }
  struct Number {
    absl::string_view prefix;
    TypeKind kind;
  };
  static constexpr Number kNumbers[] = {{"int", TypeKind::kInteger},
                                        {"uint", TypeKind::kInteger},
                                        {"float", TypeKind::kReal},
                                        {"complex", TypeKind::kComplex}};
  for (const Number& number : kNumbers) {
    absl::string_view rest = name;
    int bits = 0;
    if (!absl::ConsumePrefix(&rest, number.prefix) || !absl::SimpleAtoi(rest, &bits)) continue;
    const bool known = number.kind == TypeKind::kInteger ? bits == 8 || bits == 16 || bits == 32 || bits == 64
                       : number.kind == TypeKind::kReal  ? bits == 32 || bits == 64
                                                         : bits == 64 || bits == 128;
    if (!known) continue;
    type.kind = number.kind;
    type.bits = bits;
    type.is_signed = number.prefix != "uint";
  }
}

absl::StatusOr<Type> parse(absl::string_view text, int depth) {
  if (text.empty()) return malformed(text);
  if (depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a type is nested deeper than ", kMaxValueDepth, " levels"));
  }
  Type type;
  type.name = std::string(text);
  const std::size_t bracket = text.find('[');
  if (bracket == absl::string_view::npos) {
    set_simple(text, type);
    return type;
  }
  if (text.back() != ']') return type;
  const absl::string_view outer = text.substr(0, bracket);
  const absl::string_view inside = text.substr(bracket + 1, text.size() - bracket - 2);
  if (outer == "RRef" || outer == "message") {
    type.kind = outer == "RRef" ? TypeKind::kReference : TypeKind::kMessage;
    type.inner = std::string(inside);
    return type;
  }
  std::size_t least = 1;
  std::size_t most = 1;
  if (outer == "enum" || outer == "optional" || outer == "list") {
    type.kind = outer == "optional" ? TypeKind::kOptional : TypeKind::kList;
  } else if (outer == "map") {
    type.kind = TypeKind::kMap;
    least = most = 2;
  } else if (outer == "tuple") {
    type.kind = TypeKind::kTuple;
    least = 0;
    most = kMaxSignature;
  } else {
    return type;
  }
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<absl::string_view> parts, split(inside));
  if (parts.size() < least || parts.size() > most) return malformed(text);
  for (absl::string_view part : parts) {
    GRADWIRE_ASSIGN_OR_RETURN(Type argument, parse(part, depth + 1));
    type.arguments.push_back(std::move(argument));
  }
  if (outer != "enum") return type;
  // An enumeration is sent as its integer.
  if (type.arguments.front().kind != TypeKind::kInteger) return malformed(text);
  Type integer = std::move(type.arguments.front());
  integer.name = std::string(text);
  return integer;
}

}  // namespace

absl::StatusOr<Type> parse_type(absl::string_view text) {
  if (text.size() > kMaxSignature) return malformed(text);
  return parse(text, 1);
}

absl::StatusOr<Signature> parse_signature(absl::string_view text) {
  if (text.size() > kMaxSignature || text.empty() || text.back() != ')') return malformed(text);
  // The name of the result may have parentheses itself: "ns::(anonymous)::Point(int64)". So the parameters
  // begin at the parenthesis that the last one closes.
  int open = 0;
  std::size_t begin = text.size();
  while (begin > 0) {
    const char c = text[--begin];
    if (c == ')') ++open;
    if (c == '(' && --open == 0) break;
  }
  if (open != 0) return malformed(text);
  Signature signature;
  GRADWIRE_ASSIGN_OR_RETURN(signature.result, parse_type(text.substr(0, begin)));
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<absl::string_view> parts,
                            split(text.substr(begin + 1, text.size() - begin - 2)));
  for (absl::string_view part : parts) {
    GRADWIRE_ASSIGN_OR_RETURN(Type parameter, parse_type(part));
    signature.parameters.push_back(std::move(parameter));
  }
  return signature;
}

const Type& any_type() {
  static const Type* const type = [] {
    auto* any = new Type;
    any->kind = TypeKind::kAny;
    any->name = "IValue";
    return any;
  }();
  return *type;
}

absl::Status too_deep() {
  return absl::InvalidArgumentError(
      absl::StrCat("the value is nested too deep: expected at most ", kMaxValueDepth, " levels"));
}

}  // namespace gradwire::gateway
