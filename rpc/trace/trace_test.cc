#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/rpc/trace/trace_context.h"

// A trace that comes from outside of the job goes with the calls, and flight records name it.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kCallerParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string shown(const std::shared_ptr<const TraceContext>& trace) {
  return trace == nullptr ? "none" : absl::StrCat(trace->traceparent(), " ", trace->state);
}

// The trace in the handler, and what it should be.
std::string trace_here(const TraceContext& outer) {
  return shown(std::make_shared<const TraceContext>(outer.inside(CallContext::current()->identity())));
}
std::vector<std::string> innermost() {
  return {shown(TraceContext::current()), trace_here(*TraceContext::parse(kCallerParent, "a=1"))};
}
GRADWIRE_RPC(innermost)

// Calls a third worker, after it has waited for another call.
Future<std::vector<std::string>> middle() {
  const std::string before = shown(TraceContext::current());
  (void)co_await Agent::current()->rpc_async<&innermost>("worker2");
  if (shown(TraceContext::current()) != before) co_return std::vector<std::string>{"lost", before};
  co_return co_await Agent::current()->rpc_async<&innermost>("worker2");
}
GRADWIRE_RPC(middle)

std::string untraced() { return shown(TraceContext::current()); }
GRADWIRE_RPC(untraced)

TEST(Trace, GoesWithNestedCallsAndEndsWithItsScope) {
  testing::Group group(3);
  {
    const TraceScope scope(*TraceContext::parse(kCallerParent, "a=1"));
    const std::vector<std::string> seen = group[0]->rpc_sync<&middle>("worker1");
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(shown(TraceContext::current()), absl::StrCat(kCallerParent, " a=1"));
  }
  EXPECT_EQ(group[0]->rpc_sync<&untraced>("worker1"), "none");
}

TEST(Trace, IsTheParentOfTheFirstCallInFlightRecords) {
  testing::Group group(3);
  {
    const TraceScope scope(*TraceContext::parse(kCallerParent));
    group[0]->rpc_sync<&untraced>("worker1");
  }
  EXPECT_THAT(group[0]->flight_record(), HasSubstr("OK, for trace 0af7651916cd43dd8448eb211c80319c"));
  CallEvent event;
  event.parent = CallParent::trace(0x0af7651916cd43dd, 0x8448eb211c80319c);
  JsonLine line = event_line(event, 1);
  EXPECT_THAT(
      std::string(line.end()),
      HasSubstr(R"("parent":"trace","trace_high":"0xaf7651916cd43dd","trace_low":"0x8448eb211c80319c")"));
}

}  // namespace
}  // namespace gradwire::rpc
