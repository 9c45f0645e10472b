#include "gradwire/rpc/limits/caller_budget.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {
namespace {

absl::Status check_window(const char* name, uint64_t window, uint64_t most, const char* limit_name,
                          uint64_t limit) {
  const uint64_t effective = window == 0 || window > most ? most : window;
  if (effective <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the flow window is larger than what a caller may use: flow.", name, " is ", window,
                   window == 0 ? " (no limit)" : "", ", caller_limits.", limit_name, " is ", limit,
                   "; lower the first or raise the second, on all workers"));
}

}  // namespace

absl::Status check_caller_limits(const CallerLimits& limits, const FlowOptions& flow) {
  const std::pair<const char*, uint64_t> all[] = {
      {"max_calls", limits.max_calls},
      {"max_call_bytes", limits.max_call_bytes},
      {"max_messages", limits.max_messages},
      {"max_messages_bytes", limits.max_messages_bytes},
      {"max_references", limits.max_references},
      {"max_contexts", limits.max_contexts},
      {"max_unread_bytes", limits.max_unread_bytes},
  };
  for (const auto& [name, value] : all) {
    if (value == 0)
      return absl::InvalidArgumentError(absl::StrCat("caller_limits.", name, " must be at least 1, got 0"));
  }
  if (absl::Status calls =
          check_window("max_calls", flow.max_calls, FlowOptions::kMostCalls, "max_calls", limits.max_calls);
      !calls.ok())
    return calls;
  return check_window("max_bytes", flow.max_bytes, FlowOptions::kMostBytes, "max_call_bytes",
                      limits.max_call_bytes);
}

CallerBudget::Verdict CallerBudget::enter(uint64_t caller, uint64_t bytes) {
  const auto found = used_.find(caller);
  if (found == used_.end()) {
    used_.try_emplace(caller, Bounds{1, bytes});
    return Verdict::kEntered;
  }
  Bounds& used = found->second;
  if (used.calls >= bounds_.calls) return Verdict::kTooManyCalls;
  // Written so that a sum cannot overflow: the caller chooses the number.
  if (used.bytes > bounds_.bytes || bytes > bounds_.bytes - used.bytes) return Verdict::kTooManyBytes;
  ++used.calls;
  used.bytes += bytes;
  return Verdict::kEntered;
}

void CallerBudget::leave(uint64_t caller, uint64_t bytes) {
  const auto found = used_.find(caller);
  if (found == used_.end()) return;
  found->second.bytes -= bytes;
  if (--found->second.calls == 0) used_.erase(found);
}

CallerBudget::Bounds CallerBudget::used(uint64_t caller) const {
  const auto found = used_.find(caller);
  return found == used_.end() ? Bounds() : found->second;
}

UnreadAnswers::Verdict UnreadAnswers::on_request(uint64_t caller, uint64_t unread) {
  if (fits(unread)) {
    refused_.erase(caller);
    return Verdict::kServe;
  }
  return ++refused_[caller] > most_refused_ ? Verdict::kClose : Verdict::kRefuse;
}

}  // namespace gradwire::rpc
