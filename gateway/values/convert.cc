#include "gradwire/gateway/values/convert.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::string kind_of(const v1::Value& value) {
  if (value.kind_case() == v1::Value::KIND_NOT_SET) return "nothing";
  return v1::Value::descriptor()->FindFieldByNumber(value.kind_case())->name();
}

absl::Status too_deep() {
  return absl::InvalidArgumentError(
      absl::StrCat("the value is nested too deep: expected at most ", kMaxValueDepth, " levels"));
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

// Converts one result.
class Reader {
 public:
  explicit Reader(ResultSource& source) : source_(source) {}

  absl::Status read(const proto::Value& value, const Type& type, v1::Value& out, int depth) {
    if (depth > kMaxValueDepth) return too_deep();
    switch (value.kind_case()) {
      case proto::Value::kNone:
      case proto::Value::KIND_NOT_SET:
        out.mutable_none();
        return absl::OkStatus();
      case proto::Value::kBoolean:
        out.set_boolean(value.boolean());
        return absl::OkStatus();
      case proto::Value::kInteger:
        set_integer(value.integer(), type, out);
        return absl::OkStatus();
      case proto::Value::kReal:
        out.set_real(value.real());
        return absl::OkStatus();
      case proto::Value::kComplex:
        out.mutable_complex()->set_real(value.complex().real());
        out.mutable_complex()->set_imaginary(value.complex().imaginary());
        return absl::OkStatus();
      case proto::Value::kText:
        if (is_utf8(value.text())) {
          out.set_text(value.text());
        } else {
          out.set_data(value.text());
        }
        return absl::OkStatus();
      case proto::Value::kTensor:
        return source_.take_tensor(value.tensor(), *out.mutable_tensor());
      case proto::Value::kUndefinedTensor:
        out.mutable_undefined_tensor();
        return absl::OkStatus();
      case proto::Value::kReference:
        return source_.take_reference(value.reference(), *out.mutable_handle());
      case proto::Value::kList:
      case proto::Value::kTuple:
        return read_elements(value, type, out, depth);
      case proto::Value::kMap:
        return read_map(value.map(), type, *out.mutable_map(), depth);
      case proto::Value::kIntegers:
        read_integers(value.integers(), type, out);
        return absl::OkStatus();
      case proto::Value::kReals:
        *out.mutable_reals()->mutable_values() = value.reals().values();
        return absl::OkStatus();
      case proto::Value::kStatus:
        out.mutable_status()->set_code(value.status().code());
        out.mutable_status()->set_message(printable(value.status().message()));
        out.mutable_status()->set_worker(printable(value.status().worker()));
        return absl::OkStatus();
      case proto::Value::kMessage:
        out.mutable_message()->set_type(printable(value.message().type()));
        out.mutable_message()->set_serialized(value.message().serialized());
        return absl::OkStatus();
      case proto::Value::kDevice:
        out.set_device(printable(value.device()));
        return absl::OkStatus();
      case proto::Value::kDtype: {
        const v1::DType dtype = dtype_of(static_cast<int>(value.dtype()));
        if (dtype == v1::DTYPE_UNSPECIFIED) break;
        out.set_dtype(dtype);
        return absl::OkStatus();
      }
      case proto::Value::kLayout:
      case proto::Value::kMemoryFormat:
        break;
    }
    const auto* field = proto::Value::descriptor()->FindFieldByNumber(value.kind_case());
    return absl::InvalidArgumentError(absl::StrCat("the result has a value of kind ", field->name(),
                                                   ", which the gateway does not pass to its clients"));
  }

 private:
  // The type of the elements at `index`; any type if the type says nothing about it.
  static const Type& part(const Type& type, std::size_t index) {
    if (type.kind == TypeKind::kList) index = 0;
    return index < type.arguments.size() ? type.arguments[index] : any_type();
  }

  static void set_integer(int64_t integer, const Type& type, v1::Value& out) {
    if (integer < 0 && type.kind == TypeKind::kInteger && !type.is_signed) {
      out.set_unsigned_integer(static_cast<uint64_t>(integer));
    } else {
      out.set_integer(integer);
    }
  }

  static void read_integers(const proto::Integers& integers, const Type& type, v1::Value& out) {
    const Type& element = part(type, 0);
    bool large = false;
    if (element.kind == TypeKind::kInteger && !element.is_signed) {
      for (int64_t each : integers.values()) large |= each < 0;
    }
    if (!large) {
      *out.mutable_integers()->mutable_values() = integers.values();
      return;
    }
    for (int64_t each : integers.values()) set_integer(each, element, *out.mutable_list()->add_values());
  }

  absl::Status read_elements(const proto::Value& value, const Type& type, v1::Value& out, int depth) {
    const proto::ValueList& from = value.kind_case() == proto::Value::kList ? value.list() : value.tuple();
    if (type.kind == TypeKind::kOptional && value.kind_case() == proto::Value::kList) {
      if (from.values_size() == 1) return read(from.values(0), type.arguments[0], out, depth + 1);
      if (from.values_size() == 0) {
        out.mutable_none();
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError("malformed answer: an optional with several values");
    }
    const bool tuple = type.kind == TypeKind::kTuple || value.kind_case() == proto::Value::kTuple;
    v1::List& to = tuple ? *out.mutable_tuple() : *out.mutable_list();
    for (int i = 0; i < from.values_size(); ++i) {
      GRADWIRE_RETURN_IF_ERROR(read(from.values(i), part(type, i), *to.add_values(), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status read_map(const proto::ValueMap& map, const Type& type, v1::Map& out, int depth) {
    if (map.keys_size() != map.values_size()) return absl::InvalidArgumentError("malformed answer: a map");
    for (const proto::Value& key : map.keys()) {
      GRADWIRE_RETURN_IF_ERROR(read(key, part(type, 0), *out.add_keys(), depth + 1));
    }
    for (const proto::Value& mapped : map.values()) {
      GRADWIRE_RETURN_IF_ERROR(read(mapped, part(type, 1), *out.add_values(), depth + 1));
    }
    return absl::OkStatus();
  }

  ResultSource& source_;
};

struct DTypeRow {
  v1::DType dtype;
  int torch;
  int64_t size;
};

// The numbers are those of c10::ScalarType. gateway/torch checks them against libtorch.
constexpr DTypeRow kDTypes[] = {
    {v1::DTYPE_BOOL, 11, 1},     {v1::DTYPE_UINT8, 0, 1},          {v1::DTYPE_INT8, 1, 1},
    {v1::DTYPE_INT16, 2, 2},     {v1::DTYPE_INT32, 3, 4},          {v1::DTYPE_INT64, 4, 8},
    {v1::DTYPE_FLOAT16, 5, 2},   {v1::DTYPE_BFLOAT16, 15, 2},      {v1::DTYPE_FLOAT32, 6, 4},
    {v1::DTYPE_FLOAT64, 7, 8},   {v1::DTYPE_COMPLEX64, 9, 8},      {v1::DTYPE_COMPLEX128, 10, 16},
    {v1::DTYPE_UINT16, 27, 2},   {v1::DTYPE_UINT32, 28, 4},        {v1::DTYPE_UINT64, 29, 8},
    {v1::DTYPE_COMPLEX32, 8, 4}, {v1::DTYPE_FLOAT8_E4M3FN, 24, 1}, {v1::DTYPE_FLOAT8_E5M2, 23, 1},
};

// Returns the number of bytes of the UTF-8 sequence at the start of `text`; 0 for another byte.
std::size_t sequence_length(absl::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points beyond the last one.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

absl::Status to_wire(v1::Value& value, const Type& type, ArgumentSink& sink, proto::Value& out,
                     Mismatch& mismatch) {
  return Writer(sink, mismatch).write(value, type, out, 1);
}

absl::Status from_wire(const proto::Value& value, const Type& type, ResultSource& source, v1::Value& out) {
  return Reader(source).read(value, type, out, 1);
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

int torch_number(v1::DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.torch;
  }
  return -1;
}

int64_t item_size(v1::DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.size;
  }
  return 0;
}

v1::DType dtype_of(int torch_number) {
  for (const DTypeRow& row : kDTypes) {
    if (row.torch == torch_number) return row.dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

bool is_utf8(absl::string_view text) {
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) {
      out.push_back('?');
      text.remove_prefix(1);
    } else {
      out.append(text.substr(0, length).data(), length);
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace gradwire::gateway
