#include "gradwire/rpc/limits/caller_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Verdict = CallerBudget::Verdict;

TEST(CallerBudget, CallsAreCountedForEachCaller) {
  CallerBudget budget({2, 1000});
  EXPECT_EQ(budget.enter(7, 1), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kTooManyCalls);
  EXPECT_EQ(budget.enter(8, 1), Verdict::kEntered);
  EXPECT_EQ(budget.used(7).calls, 2u);
  EXPECT_EQ(budget.used(7).bytes, 2u);
  budget.leave(7, 1);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kEntered);
}

TEST(CallerBudget, BytesAreCountedForEachCaller) {
  CallerBudget budget({10, 100});
  EXPECT_EQ(budget.enter(7, 60), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 41), Verdict::kTooManyBytes);
  EXPECT_EQ(budget.used(7).bytes, 60u);
  EXPECT_EQ(budget.used(7).calls, 1u);
  EXPECT_EQ(budget.enter(7, 40), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kTooManyBytes);
  EXPECT_EQ(budget.enter(7, 0), Verdict::kEntered);
  EXPECT_EQ(budget.enter(8, 100), Verdict::kEntered);
}

TEST(CallerBudget, ALargeCallIsServedAlone) {
  CallerBudget budget({10, 100});
  EXPECT_EQ(budget.enter(7, 5000), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 0), Verdict::kTooManyBytes);
  budget.leave(7, 5000);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 5000), Verdict::kTooManyBytes);
}

TEST(CallerBudget, HugeSizesDoNotOverflow) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  CallerBudget budget({10, kHuge - 1});
  EXPECT_EQ(budget.enter(7, 2), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, kHuge), Verdict::kTooManyBytes);
  EXPECT_EQ(budget.enter(7, kHuge - 3), Verdict::kEntered);
  EXPECT_EQ(budget.enter(7, 1), Verdict::kTooManyBytes);
}

TEST(CallerBudget, NothingIsKeptForACallerWithoutCalls) {
  CallerBudget budget({1, 100});
  for (uint64_t caller = 1; caller <= 100; ++caller) budget.enter(caller, caller);
  EXPECT_EQ(budget.callers(), 100u);
  EXPECT_EQ(budget.enter(50, 1), Verdict::kTooManyCalls);
  for (uint64_t caller = 1; caller <= 100; ++caller) budget.leave(caller, caller);
  EXPECT_EQ(budget.callers(), 0u);
  budget.leave(50, 1);
  EXPECT_EQ(budget.callers(), 0u);
}

TEST(UnreadAnswers, APeerThatReadsIsServedAgain) {
  UnreadAnswers answers(/*max_bytes=*/10'000, /*most_refused=*/2);
  EXPECT_EQ(answers.on_request(1, 10'000), UnreadAnswers::Verdict::kServe);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(answers.on_request(1, 10'001), UnreadAnswers::Verdict::kRefuse);
    EXPECT_EQ(answers.on_request(1, 10'001), UnreadAnswers::Verdict::kRefuse);
    EXPECT_EQ(answers.on_request(1, 9'999), UnreadAnswers::Verdict::kServe);
  }
  EXPECT_EQ(answers.callers(), 0u);
}

// Handlers that ran at the same time have sent their answers.
TEST(UnreadAnswers, APeerForWhichMuchMoreThanTheLimitWaitsMayStillRead) {
  UnreadAnswers answers(/*max_bytes=*/10'000, /*most_refused=*/2);
  EXPECT_EQ(answers.on_request(1, 1'000'000), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(1, 1'000'000), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(1, 10'000), UnreadAnswers::Verdict::kServe);
}

TEST(UnreadAnswers, ErrorsTakeNoMoreBytesThanTheLimit) {
  UnreadAnswers answers(/*max_bytes=*/3 * UnreadAnswers::kErrorBytes, /*most_refused=*/1'000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(answers.on_request(1, 5'000), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(1, 5'000), UnreadAnswers::Verdict::kClose);
}

TEST(UnreadAnswers, APeerThatGoesOnWithoutReadingIsClosed) {
  UnreadAnswers answers(/*max_bytes=*/10'000, /*most_refused=*/2);
  EXPECT_EQ(answers.on_request(1, 10'001), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(1, 10'002), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(2, 15'000), UnreadAnswers::Verdict::kRefuse);
  EXPECT_EQ(answers.on_request(1, 10'003), UnreadAnswers::Verdict::kClose);
  EXPECT_EQ(answers.callers(), 2u);
  answers.forget(1);
  answers.forget(2);
  EXPECT_EQ(answers.callers(), 0u);
}

TEST(CallerLimits, DefaultsAgreeWithTheFlowWindow) {
  EXPECT_EQ(check_caller_limits({}, {}), absl::OkStatus());
}

TEST(CallerLimits, AFlowWindowThatIsLargerIsRefused) {
  CallerLimits limits;
  limits.max_calls = 9;
  absl::Status status = check_caller_limits(limits, {.max_calls = 10});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("flow.max_calls is 10"), HasSubstr("caller_limits.max_calls is 9")));
  EXPECT_EQ(check_caller_limits(limits, {.max_calls = 9}), absl::OkStatus());
  status = check_caller_limits({}, {.max_calls = 0});
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 (no limit)"));
  status = check_caller_limits({}, {.max_bytes = uint64_t{5} << 30});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("caller_limits.max_call_bytes"));
}

TEST(CallerLimits, NoLimitMayBeZero) {
  CallerLimits limits;
  for (uint64_t* limit :
       {&limits.max_calls, &limits.max_call_bytes, &limits.max_messages, &limits.max_messages_bytes,
        &limits.max_references, &limits.max_contexts, &limits.max_unread_bytes}) {
    const uint64_t before = *limit;
    *limit = 0;
    const absl::Status status = check_caller_limits(limits, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be at least 1, got 0"));
    *limit = before;
  }
}

}  // namespace
}  // namespace gradwire::rpc
