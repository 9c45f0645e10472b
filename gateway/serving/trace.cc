#include "gradwire/gateway/serving/trace.h"

#include <iterator>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradwire::gateway {
namespace {

absl::string_view view(grpc::string_ref text) { return {text.data(), text.size()}; }

}  // namespace

std::shared_ptr<const rpc::TraceContext> trace_of(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto parents = metadata.equal_range("traceparent");
  if (parents.first == parents.second || std::next(parents.first) != parents.second) return nullptr;
  std::string state;
  const auto states = metadata.equal_range("tracestate");
  for (auto entry = states.first; entry != states.second; ++entry) {
    absl::StrAppend(&state, state.empty() ? "" : ",", view(entry->second));
  }
  absl::StatusOr<rpc::TraceContext> trace = rpc::TraceContext::parse(view(parents.first->second), state);
  if (!trace.ok()) return nullptr;
  return std::make_shared<const rpc::TraceContext>(*std::move(trace));
}

}  // namespace gradwire::gateway
