#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/values/convert.h"
#include "gradwire/gateway/values/dtypes.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

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

}  // namespace

absl::Status from_wire(const proto::Value& value, const Type& type, ResultSource& source, v1::Value& out) {
  return Reader(source).read(value, type, out, 1);
}

}  // namespace gradwire::gateway
