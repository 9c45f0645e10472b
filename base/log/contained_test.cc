#include "gradwire/base/log/contained.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace gradwire {
namespace {

TEST(Contained, StepSaysWhetherItHasEnded) {
  EXPECT_TRUE(run_contained("a step", [] {}));
  EXPECT_FALSE(run_contained("a step", [] { throw std::runtime_error("it fails"); }));
}

TEST(Contained, ExceptionAtABoundaryEndsWhatTheCallbackWorksFor) {
  absl::Status ended;
  const auto callback = [&](bool fails) {
    return at_boundary(
        "a callback", [&] { return fails ? throw std::runtime_error("it fails") : 1; },
        [&](const absl::Status& status) {
          ended = status;
          return 2;
        });
  };
  EXPECT_EQ(callback(false), 1);
  EXPECT_TRUE(ended.ok());
  EXPECT_EQ(callback(true), 2);
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnknown);
  EXPECT_NE(ended.message().find("a callback: "), absl::string_view::npos) << ended;
}

TEST(ContainedDeathTest, BoundaryThatCannotReportEndsTheProcessWithAMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [](auto&&...) { throw std::bad_alloc(); };
  EXPECT_DEATH(at_boundary("a callback", fail, fail), "a callback failed, and the process ends.*no memory");
}

TEST(ContainedDeathTest, NecessaryStepThatThrowsEndsTheProcessWithAMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  run_or_end("a necessary step", [] {});
  EXPECT_DEATH(run_or_end("a necessary step", [] { throw std::runtime_error("it fails"); }),
               "a necessary step failed, and the process ends.*it fails");
  EXPECT_DEATH(run_or_end("a necessary step", [] { throw std::bad_alloc(); }), "no memory is left");
}

}  // namespace
}  // namespace gradwire
