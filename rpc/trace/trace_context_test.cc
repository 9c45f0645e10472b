#include "gradwire/rpc/trace/trace_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string state_of(absl::string_view tracestate) { return TraceContext::parse(kParent, tracestate)->state; }

TEST(TraceContext, ReadsAndWritesTraceparent) {
  const absl::StatusOr<TraceContext> context = TraceContext::parse(kParent, "rojo=00f067aa0ba902b7");
  ASSERT_TRUE(context.ok());
  EXPECT_EQ(context->trace_high, 0x0af7651916cd43ddu);
  EXPECT_EQ(context->trace_low, 0x8448eb211c80319cu);
  EXPECT_EQ(context->span, 0xb7ad6b7169203331u);
  EXPECT_EQ(context->flags, 1);
  EXPECT_EQ(context->state, "rojo=00f067aa0ba902b7");
  EXPECT_EQ(context->traceparent(), kParent);
  EXPECT_EQ(context->trace_id(), "0af7651916cd43dd8448eb211c80319c");
}

TEST(TraceContext, ReadsLaterVersionsAndKeepsOnlyTheKnownFlag) {
  for (const char* text : {"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
                           "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-what-the-future-adds"}) {
    const absl::StatusOr<TraceContext> context = TraceContext::parse(text);
    ASSERT_TRUE(context.ok()) << text;
    EXPECT_EQ(context->traceparent(), kParent) << text;
  }
}

TEST(TraceContext, RefusesMalformedTraceparents) {
  for (const char* text : {"", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-012",
                           "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                           "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
                           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}) {
    EXPECT_EQ(TraceContext::parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TraceContext, LeavesOutAMalformedTracestate) {
  EXPECT_EQ(state_of(" a=1 ,\tb@c=2,,d-_*/=x y"), "a=1,b@c=2,d-_*/=x y");
  for (const std::string& text :
       {std::string("a"), std::string("a="), std::string("=1"), std::string("A=1"), std::string("a=1,a=2"),
        std::string("a=b=c"), std::string("a@b@c=1"), std::string("a=\x01"), std::string("a=\xff"),
        std::string(257, 'k') + "=1", "a=" + std::string(257, 'v')}) {
    EXPECT_EQ(state_of(text), "") << text;
  }
  std::string members;
  for (int i = 0; i < 33; ++i) absl::StrAppend(&members, "k", i, "=1,");
  EXPECT_EQ(state_of(members), "");
}

TEST(TraceContext, ShortensALongTracestate) {
  const std::string large = "large=" + std::string(200, 'x');
  std::string small;
  for (int i = 10; i < 30; ++i) absl::StrAppend(&small, i > 10 ? "," : "", "k", i, "=", std::string(12, 'v'));
  // The long members are dropped first, from the end, and only as many as necessary.
  EXPECT_EQ(state_of(absl::StrCat(large, ",", small)), small);
  EXPECT_EQ(state_of(absl::StrCat("first=1,", large, ",b", large)),
            absl::StrCat("first=1,", large, ",b", large));
  std::string many;
  for (int i = 10; i < 42; ++i) absl::StrAppend(&many, i > 10 ? "," : "", "k", i, "=", std::string(20, 'v'));
  const std::string kept = state_of(many);
  EXPECT_LE(kept.size(), TraceContext::kMaxState);
  EXPECT_GT(kept.size(), TraceContext::kMaxState - 25);
  EXPECT_EQ(many.compare(0, kept.size(), kept), 0);
}

TEST(TraceContext, ACallIsASpanOfItsOwn) {
  const TraceContext outer = *TraceContext::parse(kParent, "a=1");
  const TraceContext inner = outer.inside({7, 1});
  EXPECT_EQ(inner.trace_id(), outer.trace_id());
  EXPECT_EQ(inner.state, "a=1");
  EXPECT_NE(inner.span, outer.span);
  EXPECT_NE(inner.span, 0u);
  EXPECT_EQ(inner, outer.inside({7, 1}));
  EXPECT_NE(inner.span, outer.inside({7, 2}).span);
  EXPECT_NE(inner.span, outer.inside({8, 1}).span);
}

TEST(TraceScope, IsCurrentWhileItLives) {
  EXPECT_EQ(TraceContext::current(), nullptr);
  const TraceContext outer = *TraceContext::parse(kParent);
  {
    const TraceScope scope(outer);
    EXPECT_EQ(*TraceContext::current(), outer);
    {
      const TraceScope inner(outer.inside({1, 1}));
      EXPECT_EQ(*TraceContext::current(), outer.inside({1, 1}));
    }
    const TraceScope nothing(std::shared_ptr<const TraceContext>(nullptr));
    EXPECT_EQ(*TraceContext::current(), outer);
  }
  EXPECT_EQ(TraceContext::current(), nullptr);
}

}  // namespace
}  // namespace gradwire::rpc
