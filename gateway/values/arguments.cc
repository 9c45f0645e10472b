#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/values/convert.h"
#include "gradwire/gateway/values/dtypes.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::string kind_of(const v1::Value& value) {
  if (value.kind_case() == v1::Value::KIND_NOT_SET) return "nothing";
  return v1::Value::descriptor()->FindFieldByNumber(value.kind_case())->name();
}

// Whether the integer is the same as a double of this many bits.
bool is_exact(int64_t integer, int bits) {
  const int64_t bound = int64_t{1} << (bits == 32 ? 24 : 53);
  if (integer >= -bound && integer <= bound) return true;
  // An integer of 2^63 - 1 rounds to 2^63, which does not convert back.
  const double real =
      bits == 32 ? static_cast<double>(static_cast<float>(integer)) : static_cast<double>(integer);
  return real < 9223372036854775808.0 && static_cast<int64_t>(real) == integer;
}

// Converts one argument.
class Writer {
 public:
  Writer(ArgumentSink& sink, Mismatch& mismatch) : sink_(sink), mismatch_(mismatch) {}

  absl::Status write(v1::Value& value, const Type& type, proto::Value& out, int depth) {
    if (depth > kMaxValueDepth) return too_deep();
    switch (type.kind) {
      case TypeKind::kVoid:
        if (!value.has_none()) return wrong(type, value);
        out.set_none(true);
        return absl::OkStatus();
      case TypeKind::kBool:
        if (value.kind_case() != v1::Value::kBoolean) return wrong(type, value);
        out.set_boolean(value.boolean());
        return absl::OkStatus();
      case TypeKind::kInteger: {
        GRADWIRE_ASSIGN_OR_RETURN(int64_t integer, integer_for(type, value));
        out.set_integer(integer);
        return absl::OkStatus();
      }
      case TypeKind::kReal: {
        GRADWIRE_ASSIGN_OR_RETURN(double real, real_for(type, value));
        out.set_real(real);
        return absl::OkStatus();
      }
      case TypeKind::kComplex:
        return write_complex(value, type, out);
      case TypeKind::kText:
        return write_text(value, type, out);
      case TypeKind::kTensor:
        if (value.kind_case() != v1::Value::kTensor && !value.has_undefined_tensor())
          return wrong(type, value);
        return write_any(value, type, out, depth);
      case TypeKind::kScalar:
        if (value.kind_case() != v1::Value::kBoolean && value.kind_case() != v1::Value::kInteger &&
            value.kind_case() != v1::Value::kUnsignedInteger && value.kind_case() != v1::Value::kReal &&
            value.kind_case() != v1::Value::kComplex) {
          return wrong(type, value);
        }
        return write_any(value, type, out, depth);
      case TypeKind::kScalarType:
        if (value.kind_case() != v1::Value::kDtype) return wrong(type, value);
        return write_any(value, type, out, depth);
      case TypeKind::kDevice:
        if (value.kind_case() != v1::Value::kDevice) return wrong(type, value);
        return write_any(value, type, out, depth);
      case TypeKind::kStatus:
        if (!value.has_status()) return wrong(type, value);
        return write_any(value, type, out, depth);
      case TypeKind::kOptional: {
        // A list of zero or one elements, as Codec<std::optional<T>> sends it.
        proto::ValueList& list = *out.mutable_list();
        if (value.has_none()) return absl::OkStatus();
        return write(value, type.arguments[0], *list.add_values(), depth + 1);
      }
      case TypeKind::kList:
        return write_list(value, type, out, depth);
      case TypeKind::kTuple:
        return write_tuple(value, type, out, depth);
      case TypeKind::kMap:
        return write_map(value, type, out, depth);
      case TypeKind::kReference: {
        if (!value.has_handle()) return wrong(type, value);
        GRADWIRE_ASSIGN_OR_RETURN(uint32_t index, sink_.add_handle(value.handle().id(), type.inner));
        out.set_reference(index);
        return absl::OkStatus();
      }
      case TypeKind::kMessage:
        if (!value.has_message() || value.message().type() != type.inner) return wrong(type, value);
        return write_any(value, type, out, depth);
      case TypeKind::kAny:
      case TypeKind::kOther:
        return write_any(value, type, out, depth);
    }
    return absl::InternalError("unknown kind of type");
  }

 private:
  absl::Status wrong(const Type& type, const v1::Value& value) {
    std::string got = kind_of(value);
    if (value.has_message()) absl::StrAppend(&got, "[", value.message().type(), "]");
    return wrong(type.name, std::move(got));
  }
  absl::Status wrong(const std::string& wanted, std::string got) {
    mismatch_ = {wanted, std::move(got)};
    return absl::InvalidArgumentError(absl::StrCat("got ", mismatch_.got, ", expected ", wanted));
  }

  absl::StatusOr<int64_t> in_range(const Type& type, int64_t integer) {
    bool fits = true;
    if (type.bits < 64) {
      const int64_t least = type.is_signed ? -(int64_t{1} << (type.bits - 1)) : 0;
      const int64_t most = (int64_t{1} << (type.is_signed ? type.bits - 1 : type.bits)) - 1;
      fits = integer >= least && integer <= most;
    } else if (!type.is_signed) {
      fits = integer >= 0;
    }
    if (fits) return integer;
    return wrong(type.name, absl::StrCat("the integer ", integer));
  }

  absl::StatusOr<int64_t> integer_for(const Type& type, const v1::Value& value) {
    if (value.kind_case() == v1::Value::kInteger) return in_range(type, value.integer());
    if (value.kind_case() != v1::Value::kUnsignedInteger) return wrong(type, value);
    const uint64_t integer = value.unsigned_integer();
    if (integer <= static_cast<uint64_t>(kMaxInt64)) return in_range(type, static_cast<int64_t>(integer));
    // An unsigned 64-bit integer is sent as the signed one with the same bits.
    if (type.bits == 64 && !type.is_signed) return static_cast<int64_t>(integer);
    return wrong(type.name, absl::StrCat("the integer ", integer));
  }

  absl::StatusOr<double> real_for(const Type& type, const v1::Value& value) {
    if (value.kind_case() == v1::Value::kReal) return value.real();
    if (value.kind_case() != v1::Value::kInteger) return wrong(type, value);
    return exact(type, value.integer(), type.bits);
  }
  absl::StatusOr<double> exact(const Type& type, int64_t integer, int bits) {
    if (is_exact(integer, bits)) return static_cast<double>(integer);
    return wrong(type.name, absl::StrCat("the integer ", integer, ", which has no exact value of this type"));
  }

  absl::Status write_complex(const v1::Value& value, const Type& type, proto::Value& out) {
    proto::Complex& complex = *out.mutable_complex();
    switch (value.kind_case()) {
      case v1::Value::kComplex:
        complex.set_real(value.complex().real());
        complex.set_imaginary(value.complex().imaginary());
        return absl::OkStatus();
      case v1::Value::kReal:
        complex.set_real(value.real());
        return absl::OkStatus();
      case v1::Value::kInteger: {
        GRADWIRE_ASSIGN_OR_RETURN(double real, exact(type, value.integer(), type.bits / 2));
        complex.set_real(real);
        return absl::OkStatus();
      }
      default:
        return wrong(type, value);
    }
  }

  absl::Status write_text(v1::Value& value, const Type& type, proto::Value& out) {
    if (value.kind_case() == v1::Value::kText) {
      out.set_text(std::move(*value.mutable_text()));
    } else if (value.kind_case() == v1::Value::kData) {
      out.set_text(std::move(*value.mutable_data()));
    } else {
      return wrong(type, value);
    }
    return absl::OkStatus();
  }

  static v1::List* elements_of(v1::Value& value) {
    if (value.has_list()) return value.mutable_list();
    if (value.has_tuple()) return value.mutable_tuple();
    return nullptr;
  }

  // Whether C++ sends lists of this type as packed integers or reals. Enumerations are not.
  static bool is_packed(const Type& element) {
    return (element.kind == TypeKind::kInteger && !absl::StartsWith(element.name, "enum[")) ||
           element.kind == TypeKind::kReal;
  }

  absl::Status write_list(v1::Value& value, const Type& type, proto::Value& out, int depth) {
    const Type& element = type.arguments[0];
    v1::List* const list = elements_of(value);
    if (list == nullptr && !value.has_integers() && !value.has_reals()) return wrong(type, value);
    if (is_packed(element)) return write_packed(value, list, element, out);
    proto::ValueList& to = *out.mutable_list();
    if (list != nullptr) {
      for (v1::Value& each : *list->mutable_values()) {
        GRADWIRE_RETURN_IF_ERROR(write(each, element, *to.add_values(), depth + 1));
      }
      return absl::OkStatus();
    }
    return write_numbers(
        value, [&](v1::Value& each, int) { return write(each, element, *to.add_values(), depth + 1); });
  }

  // Calls `write_one` with each number of `integers` or `reals` as a value of its own.
  template <class F>
  absl::Status write_numbers(v1::Value& value, F write_one) {
    v1::Value each;
    int index = 0;
    for (int64_t integer : value.integers().values()) {
      each.set_integer(integer);
      GRADWIRE_RETURN_IF_ERROR(write_one(each, index++));
    }
    for (double real : value.reals().values()) {
      each.set_real(real);
      GRADWIRE_RETURN_IF_ERROR(write_one(each, index++));
    }
    return absl::OkStatus();
  }

  absl::Status write_packed(v1::Value& value, v1::List* list, const Type& element, proto::Value& out) {
    const bool reals = element.kind == TypeKind::kReal;
    if (reals) {
      out.mutable_reals();
    } else {
      out.mutable_integers();
    }
    const auto write_one = [&](v1::Value& each, int) -> absl::Status {
      if (reals) {
        GRADWIRE_ASSIGN_OR_RETURN(double real, real_for(element, each));
        out.mutable_reals()->add_values(real);
      } else {
        GRADWIRE_ASSIGN_OR_RETURN(int64_t integer, integer_for(element, each));
        out.mutable_integers()->add_values(integer);
      }
      return absl::OkStatus();
    };
    if (list == nullptr) {
      if (reals && value.has_reals()) {
        out.mutable_reals()->mutable_values()->Swap(value.mutable_reals()->mutable_values());
        return absl::OkStatus();
      }
      return write_numbers(value, write_one);
    }
    for (v1::Value& each : *list->mutable_values()) GRADWIRE_RETURN_IF_ERROR(write_one(each, 0));
    return absl::OkStatus();
  }

  absl::Status write_tuple(v1::Value& value, const Type& type, proto::Value& out, int depth) {
    v1::List* const list = elements_of(value);
    if (list == nullptr && !value.has_integers() && !value.has_reals()) return wrong(type, value);
    const int size =
        list != nullptr ? list->values_size() : value.integers().values_size() + value.reals().values_size();
    if (size != static_cast<int>(type.arguments.size())) {
      return wrong(type.name, absl::StrCat("a ", kind_of(value), " of length ", size));
    }
    proto::ValueList& to = *out.mutable_list();
    if (list == nullptr) {
      return write_numbers(value, [&](v1::Value& each, int index) {
        return write(each, type.arguments[index], *to.add_values(), depth + 1);
      });
    }
    for (int i = 0; i < size; ++i) {
      GRADWIRE_RETURN_IF_ERROR(
          write(*list->mutable_values(i), type.arguments[i], *to.add_values(), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status write_map(v1::Value& value, const Type& type, proto::Value& out, int depth) {
    if (!value.has_map()) return wrong(type, value);
    v1::Map& map = *value.mutable_map();
    GRADWIRE_RETURN_IF_ERROR(check_map(map));
    proto::ValueMap& to = *out.mutable_map();
    for (v1::Value& key : *map.mutable_keys()) {
      GRADWIRE_RETURN_IF_ERROR(write(key, type.arguments[0], *to.add_keys(), depth + 1));
    }
    for (v1::Value& mapped : *map.mutable_values()) {
      GRADWIRE_RETURN_IF_ERROR(write(mapped, type.arguments[1], *to.add_values(), depth + 1));
    }
    return absl::OkStatus();
  }

  static absl::Status check_map(const v1::Map& map) {
    if (map.keys_size() == map.values_size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("malformed map: got ", map.keys_size(), " keys and ",
                                                   map.values_size(), " values, expected equally many"));
  }

  // Passes a value on as it is: for IValues, and for types that only the program knows.
  absl::Status write_any(v1::Value& value, const Type& type, proto::Value& out, int depth) {
    if (depth > kMaxValueDepth) return too_deep();
    switch (value.kind_case()) {
      case v1::Value::kNone:
        out.set_none(true);
        return absl::OkStatus();
      case v1::Value::kBoolean:
        out.set_boolean(value.boolean());
        return absl::OkStatus();
      case v1::Value::kInteger:
        out.set_integer(value.integer());
        return absl::OkStatus();
      case v1::Value::kUnsignedInteger:
        if (value.unsigned_integer() > static_cast<uint64_t>(kMaxInt64)) {
          return wrong("int64", absl::StrCat("the integer ", value.unsigned_integer()));
        }
        out.set_integer(static_cast<int64_t>(value.unsigned_integer()));
        return absl::OkStatus();
      case v1::Value::kReal:
        out.set_real(value.real());
        return absl::OkStatus();
      case v1::Value::kComplex:
        return write_complex(value, type, out);
      case v1::Value::kText:
      case v1::Value::kData:
        return write_text(value, type, out);
      case v1::Value::kTensor: {
        GRADWIRE_ASSIGN_OR_RETURN(uint32_t index, sink_.add_tensor(*value.mutable_tensor()));
        out.set_tensor(index);
        return absl::OkStatus();
      }
      case v1::Value::kUndefinedTensor:
        out.set_undefined_tensor(true);
        return absl::OkStatus();
      case v1::Value::kList:
        return write_elements(*value.mutable_list(), type, *out.mutable_list(), depth);
      case v1::Value::kTuple:
        return write_elements(*value.mutable_tuple(), type, *out.mutable_tuple(), depth);
      case v1::Value::kMap: {
        v1::Map& map = *value.mutable_map();
        GRADWIRE_RETURN_IF_ERROR(check_map(map));
        proto::ValueMap& to = *out.mutable_map();
        for (v1::Value& key : *map.mutable_keys()) {
          GRADWIRE_RETURN_IF_ERROR(write_any(key, type, *to.add_keys(), depth + 1));
        }
        for (v1::Value& mapped : *map.mutable_values()) {
          GRADWIRE_RETURN_IF_ERROR(write_any(mapped, type, *to.add_values(), depth + 1));
        }
        return absl::OkStatus();
      }
      case v1::Value::kIntegers:
        out.mutable_integers()->mutable_values()->Swap(value.mutable_integers()->mutable_values());
        return absl::OkStatus();
      case v1::Value::kReals:
        out.mutable_reals()->mutable_values()->Swap(value.mutable_reals()->mutable_values());
        return absl::OkStatus();
      case v1::Value::kHandle: {
        if (type.kind == TypeKind::kAny) return wrong(type, value);
        GRADWIRE_ASSIGN_OR_RETURN(uint32_t index, sink_.add_handle(value.handle().id(), ""));
        out.set_reference(index);
        return absl::OkStatus();
      }
      case v1::Value::kStatus:
        if (type.kind == TypeKind::kAny) return wrong(type, value);
        out.mutable_status()->set_code(value.status().code());
        out.mutable_status()->set_message(value.status().message());
        out.mutable_status()->set_worker(value.status().worker());
        return absl::OkStatus();
      case v1::Value::kMessage:
        if (type.kind == TypeKind::kAny) return wrong(type, value);
        out.mutable_message()->set_type(value.message().type());
        out.mutable_message()->set_serialized(std::move(*value.mutable_message()->mutable_serialized()));
        return absl::OkStatus();
      case v1::Value::kDtype: {
        const int number = torch_number(value.dtype());
        if (number < 0) return wrong("a known dtype", absl::StrCat("the dtype ", value.dtype()));
        out.set_dtype(static_cast<uint32_t>(number));
        return absl::OkStatus();
      }
      case v1::Value::kDevice:
        out.set_device(value.device());
        return absl::OkStatus();
      case v1::Value::KIND_NOT_SET:
        break;
    }
    return wrong(type, value);
  }

  absl::Status write_elements(v1::List& list, const Type& type, proto::ValueList& out, int depth) {
    for (v1::Value& each : *list.mutable_values()) {
      GRADWIRE_RETURN_IF_ERROR(write_any(each, type, *out.add_values(), depth + 1));
    }
    return absl::OkStatus();
  }

  ArgumentSink& sink_;
  Mismatch& mismatch_;
};

}  // namespace

absl::Status to_wire(v1::Value& value, const Type& type, ArgumentSink& sink, proto::Value& out,
                     Mismatch& mismatch) {
  return Writer(sink, mismatch).write(value, type, out, 1);
}

}  // namespace gradwire::gateway
