#include "gradwire/base/error.h"

#include "gtest/gtest.h"

namespace gradwire {
namespace {

absl::Status status_of_thrown(auto thrown) {
  try {
    throw thrown;
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
}

TEST(Error, CarriesStatusWorkerAndText) {
  const Error error(with_worker(absl::NotFoundError("function \"f\" not found"), "ps"));
  EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error.worker(), "ps");
  EXPECT_STREQ(error.what(), "NOT_FOUND: function \"f\" not found [worker \"ps\"]");
}

TEST(Error, LocalErrorNamesNoWorker) {
  const Error error(absl::InternalError("broken"));
  EXPECT_EQ(error.worker(), "");
  EXPECT_STREQ(error.what(), "INTERNAL: broken");
}

TEST(Error, OkStatusBecomesInternal) {
  EXPECT_EQ(Error(absl::OkStatus()).status().code(), absl::StatusCode::kInternal);
}

TEST(WithWorker, FirstWorkerStays) {
  EXPECT_EQ(worker_of(with_worker(with_worker(absl::AbortedError("x"), "first"), "second")), "first");
  EXPECT_EQ(worker_of(with_worker(absl::AbortedError("x"), "")), "");
  EXPECT_TRUE(with_worker(absl::OkStatus(), "a").ok());
}

TEST(WithContext, KeepsCodeAndWorker) {
  const absl::Status status =
      with_context(with_worker(absl::AbortedError("the worker stopped"), "w"), "calling f");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "calling f: the worker stopped");
  EXPECT_EQ(worker_of(status), "w");
  EXPECT_TRUE(with_context(absl::OkStatus(), "calling f").ok());
}

TEST(WithContext, LengthIsBounded) {
  absl::Status status = absl::AbortedError("the worker stopped");
  for (int i = 0; i < 100'000; ++i) status = with_context(status, "\"next\"");
  EXPECT_GT(status.message().size(), 65'536u);
  EXPECT_LT(status.message().size(), 65'600u);
}

TEST(Caught, IsTheStatusOfTheExceptionWithItsContext) {
  const auto caught_from = [](auto thrown) {
    try {
      throw thrown;
    } catch (...) {
      return caught("reading a line");
    }
  };
  EXPECT_EQ(caught_from(std::runtime_error("no file")),
            absl::UnknownError("reading a line: std::runtime_error: no file"));
  const absl::Status lost = caught_from(Error(with_worker(absl::AbortedError("lost"), "w")));
  EXPECT_EQ(lost.message(), "reading a line: lost");
  EXPECT_EQ(worker_of(lost), "w");
}

TEST(StatusFromException, ErrorKeepsItsStatus) {
  const absl::Status status = status_of_thrown(Error(with_worker(absl::UnavailableError("dead"), "w")));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(worker_of(status), "w");
}

TEST(StatusFromException, StandardExceptionIsUnknownWithTypeAndText) {
  const absl::Status status = status_of_thrown(std::out_of_range("index 7"));
  EXPECT_EQ(status, absl::UnknownError("std::out_of_range: index 7"));
}

TEST(StatusFromException, AnythingElseIsUnknown) {
  EXPECT_EQ(status_of_thrown(7).code(), absl::StatusCode::kUnknown);
}

TEST(StatusFromException, TranslatorKnowsBetter) {
  set_exception_translator([](const std::exception& exception) {
    if (dynamic_cast<const std::length_error*>(&exception) == nullptr) return absl::OkStatus();
    return absl::UnknownError("too long");
  });
  const absl::Status known = status_of_thrown(std::length_error("with a backtrace"));
  const absl::Status unknown = status_of_thrown(std::range_error("r"));
  set_exception_translator(nullptr);
  EXPECT_EQ(known.message(), "too long");
  EXPECT_EQ(unknown.message(), "std::range_error: r");
}

TEST(ValueOrThrow, ReturnsOrThrows) {
  EXPECT_EQ(value_or_throw(absl::StatusOr<int>(3)), 3);
  EXPECT_THROW(value_or_throw(absl::StatusOr<int>(absl::NotFoundError("x"))), Error);
  EXPECT_NO_THROW(throw_if_error(absl::OkStatus()));
  EXPECT_THROW(throw_if_error(absl::NotFoundError("x")), Error);
}

absl::StatusOr<int> add_one(absl::StatusOr<int> in) {
  GRADWIRE_ASSIGN_OR_RETURN(const int first, in);
  GRADWIRE_RETURN_IF_ERROR(first < 0 ? absl::InvalidArgumentError("negative") : absl::OkStatus());
  GRADWIRE_ASSIGN_OR_RETURN(const int second, absl::StatusOr<int>(first + 1));
  return second;
}

TEST(ErrorMacros, PassErrorsOn) {
  EXPECT_EQ(*add_one(1), 2);
  EXPECT_EQ(add_one(-1).status().message(), "negative");
  EXPECT_EQ(add_one(absl::NotFoundError("x")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace gradwire
