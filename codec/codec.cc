#include "gradwire/codec/codec.h"

namespace gradwire::rpc {

absl::Status Nesting::Step::too_deep() {
  return absl::InvalidArgumentError(
      absl::StrCat("a value is nested too deep: got more than ", kMaxNesting,
                   " levels, the limit of a message; send deep structures as lists without nesting"));
}

absl::Status wrong_kind(absl::string_view expected, const proto::Value& got) {
  // The name of the field in value.proto, which names the kind.
  absl::string_view kind = "nothing";
  if (got.kind_case() != proto::Value::KIND_NOT_SET) {
    kind = proto::Value::descriptor()->FindFieldByNumber(got.kind_case())->name();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a value of type ", expected, ", got one of kind ", kind));
}

}  // namespace gradwire::rpc
