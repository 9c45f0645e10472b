#include "gradwire/rpc/transfers/transfer_name.h"

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {

std::string callee_of(const proto::Request& request) {
  switch (request.callee_case()) {
    case proto::Request::kFunction:
      return request.function();
    case proto::Request::kMethod:
      return request.method();
    case proto::Request::kConstructor:
      return request.constructor();
    case proto::Request::kOperator:
      return request.operator_();
    case proto::Request::kScript:
      return request.script();
    case proto::Request::kFetch:
      return "to_here";
    case proto::Request::kService:
      return absl::StrCat("service ", request.service().number());
    default:
      return "nothing";
  }
}

std::string transfer_name(const proto::Envelope& envelope, absl::string_view answered) {
  switch (envelope.body_case()) {
    case proto::Envelope::kRequest:
      return absl::StrCat("the call of \"", callee_of(envelope.request()), "\"");
    case proto::Envelope::kResponse:
      return answered.empty() ? "an answer" : absl::StrCat("the answer of \"", answered, "\"");
    case proto::Envelope::kPart:
      return "a part of a call or an answer";
    default:
      return "a message";
  }
}

}  // namespace gradwire::rpc
