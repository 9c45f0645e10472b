#include "gradwire/gateway/serving/reply.h"

#include <chrono>
#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/values/utf8.h"

namespace gradwire::gateway {
namespace {

// gRPC writes each byte of a message that is not printable as three.
constexpr std::size_t kMaxMessage = 1536;
constexpr std::size_t kMaxField = 256;

std::string cut(absl::string_view text, std::size_t most) {
  std::string kept = printable(text.substr(0, most));
  if (text.size() > most) kept += "...";
  return kept;
}

void cut_field(std::string* field) { *field = cut(*field, kMaxField); }

}  // namespace

grpc::Status reply_status(grpc::CallbackServerContext& context, const absl::Status& status,
                          v1::ErrorDetail detail) {
  if (status.ok()) return grpc::Status::OK;
  if (detail.worker().empty()) detail.set_worker(worker_of(status));
  const Reached reached = reached_limit(status);
  detail.set_limit(reached.limit);
  detail.set_option(reached.option);
  for (std::string* field : {detail.mutable_worker(), detail.mutable_callee(), detail.mutable_keyword(),
                             detail.mutable_wanted(), detail.mutable_got()}) {
    cut_field(field);
  }
  context.AddTrailingMetadata(kErrorKey, detail.SerializeAsString());
  // Both enumerations have the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), cut(status.message(), kMaxMessage));
}

absl::Status authenticate(const Core& core, const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  return core.access.check_token(found == metadata.end()
                                     ? absl::string_view()
                                     : absl::string_view(found->second.data(), found->second.size()));
}

absl::StatusOr<Quotas::Permit> enter_call(Core& core, const grpc::CallbackServerContext& context) {
  GRADWIRE_RETURN_IF_ERROR(authenticate(core, context));
  return core.limits.enter_call(context.peer());
}

absl::Time deadline_of(const Core& core, const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return Clock::system().now() + core.options.default_timeout;
  }
  // Clock::system() need not have the epoch of the system clock, so only the rest of the time is used.
  return Clock::system().now() + absl::FromChrono(deadline - std::chrono::system_clock::now());
}

}  // namespace gradwire::gateway
