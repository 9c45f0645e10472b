#include "gradwire/rpc/policy/call_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/policy/policy_text.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PolicyText;

const Worker kSelf{"ps", 0, 1};
const Worker kTrainer{"trainer0", 1, 2};

// `examine`: gets the examination of the file, which the test runs.
std::unique_ptr<CallPolicy> open(const PolicyText& text, std::function<void()>* examine = nullptr) {
  auto policy = CallPolicy::open(text.path(), kSelf, [examine](std::function<void()> task) {
    if (examine != nullptr) *examine = std::move(task);
    return std::shared_ptr<void>();
  });
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? *std::move(policy) : nullptr;
}

proto::Request function(const std::string& name) {
  proto::Request request;
  request.set_function(name);
  return request;
}
proto::Request method(const std::string& name) {
  proto::Request request;
  request.set_method(name);
  request.mutable_target();
  return request;
}
proto::Request operation(const std::string& name) {
  proto::Request request;
  request.set_operator_(name);
  return request;
}

TEST(CallPolicy, EachKindOfCallNeedsItsRule) {
  const PolicyText text(
      "allow trainer* function f\nallow trainer* class S, \"B<a::b>\"\nallow trainer* operator aten::add\n"
      "allow trainer* script m.g\nallow trainer* service barrier\n");
  const auto policy = open(text);
  const auto allowed = [&](const proto::Request& request) {
    const absl::Status status = policy->check_request(kTrainer, request);
    EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
    return status.ok();
  };
  EXPECT_TRUE(allowed(function("f")));
  EXPECT_FALSE(allowed(function("g")));
  EXPECT_FALSE(allowed(function("S")));
  proto::Request constructor;
  constructor.set_constructor("S");
  EXPECT_TRUE(allowed(constructor));
  constructor.set_constructor("T");
  EXPECT_FALSE(allowed(constructor));
  for (const char* name : {"S::push", "S::operator()", "S::operator<", "S::operator->", "S::f<a::b>",
                           "B<a::b>::get", "S::operators"}) {
    EXPECT_TRUE(allowed(method(name))) << name;
  }
  for (const char* name :
       {"T::push", "n::S::push", "push", "B<a", "::", "", ">>", "S::x::push", "Stream[S::push].take"}) {
    EXPECT_FALSE(allowed(method(name))) << name;
  }
  EXPECT_TRUE(allowed(operation("aten::add")));
  EXPECT_TRUE(allowed(operation("aten::add.Tensor")));
  EXPECT_FALSE(allowed(operation("aten::addmm")));
  EXPECT_FALSE(allowed(operation("aten::mul.aten::add")));
  proto::Request script;
  script.set_script("m.g");
  EXPECT_TRUE(allowed(script));
  script.set_script("m.h");
  EXPECT_FALSE(allowed(script));
  EXPECT_TRUE(policy->check_service(kTrainer, "barrier").ok());
  EXPECT_FALSE(policy->check_service(kTrainer, "callees").ok());
}

TEST(CallPolicy, ReferencesAndContextsNeedTheirRulesToo) {
  const PolicyText text(
      "allow * function f\nallow * operator *\n"
      "allow holder,both reference hold\nallow fetcher,both reference fetch\nallow both service autograd\n");
  const auto policy = open(text);
  const auto allowed = [&](const char* caller, const proto::Request& request) {
    return policy->check_request({caller, 1, 2}, request).ok();
  };
  proto::Request fetch;
  fetch.set_fetch(true);
  fetch.mutable_target();
  EXPECT_TRUE(allowed("fetcher", fetch));
  EXPECT_FALSE(allowed("holder", fetch));
  // An operator on a reference reads its value.
  proto::Request on_reference = operation("aten::clone");
  EXPECT_TRUE(allowed("holder", on_reference));
  on_reference.mutable_target();
  EXPECT_TRUE(allowed("fetcher", on_reference));
  EXPECT_FALSE(allowed("holder", on_reference));
  proto::Request remote = function("f");
  remote.mutable_result_rref();
  EXPECT_TRUE(allowed("holder", remote));
  EXPECT_FALSE(allowed("fetcher", remote));
  EXPECT_TRUE(policy->check_hold({"holder", 1, 2}).ok());
  EXPECT_FALSE(policy->check_hold({"fetcher", 1, 2}).ok());
  proto::Request in_context = function("f");
  in_context.mutable_arguments()->mutable_graph();
  EXPECT_TRUE(allowed("both", in_context));
  EXPECT_FALSE(allowed("holder", in_context));
}

TEST(CallPolicy, AWorkerMayCallItself) {
  const PolicyText text("deny * everything");
  const auto policy = open(text);
  EXPECT_TRUE(policy->check_request(kSelf, function("f")).ok());
  // Another worker with the same name is not this one.
  EXPECT_FALSE(policy->check_request({"ps", 0, 7}, function("f")).ok());
}

TEST(CallPolicy, ARefusalNamesCallerCalleeFileAndLine) {
  const PolicyText text("\ndeny trainer* function f\nallow * service barrier\n");
  const auto policy = open(text);
  const absl::Status denied = policy->check_request(kTrainer, function("f"));
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_EQ(denied.message(), absl::StrCat("worker \"trainer0\" may not call the function \"f\" of worker "
                                           "\"ps\": line 2 of ",
                                           text.path(), " denies it"));
  EXPECT_EQ(policy->check_request(kTrainer, function("g<int, int>")).message(),
            absl::StrCat("worker \"trainer0\" may not call the function \"g<int, int>\" of worker \"ps\": no "
                         "line of ",
                         text.path(),
                         " allows it; to allow it, add the line: allow trainer0 function \"g<int, int>\""));
  EXPECT_THAT(policy->check_request(kTrainer, method("S::m")).message(),
              AllOf(HasSubstr("call the method \"S::m\""), HasSubstr("allow trainer0 class S::m")));
  proto::Request fetch;
  fetch.set_fetch(true);
  EXPECT_THAT(policy->check_request(kTrainer, fetch).message(),
              AllOf(HasSubstr("fetch the values of references of worker \"ps\""),
                    HasSubstr("allow trainer0 reference fetch")));
}

// The name of a callee comes from the caller.
TEST(CallPolicy, HostileNamesAreShortenedAndEscaped) {
  const PolicyText text("allow a function b");
  const auto policy = open(text);
  const std::string long_name(1 << 20, '\n');
  const absl::Status denied = policy->check_request(kTrainer, function(long_name));
  EXPECT_LT(denied.message().size(), 2500u);
  EXPECT_THAT(denied.message(),
              AllOf(HasSubstr("\\n"), Not(HasSubstr("\n")), Not(HasSubstr("add the line"))));
  EXPECT_THAT(policy->check_request(kTrainer, function("a\"\n")).message(), HasSubstr("\"a\\\"\\n\""));
}

TEST(CallPolicy, LogsOncePerCallerAndRuleAndCountsAll) {
  PolicyText text("deny * function f\ndeny * function g\n");
  std::function<void()> examine;
  const auto policy = open(text, &examine);
  const Worker other{"trainer1", 2, 3};
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    for (const Worker& worker : {kTrainer, other}) {
      for (const char* name : {"f", "g", "h", "i"})
        EXPECT_FALSE(policy->check_request(worker, function(name)).ok());
    }
  }
  EXPECT_THAT(captured_lines("may not"), ElementsAre(AllOf(HasSubstr("trainer0"), HasSubstr("line 1")),
                                                     AllOf(HasSubstr("trainer0"), HasSubstr("line 2")),
                                                     AllOf(HasSubstr("trainer0"), HasSubstr("no line")),
                                                     AllOf(HasSubstr("trainer1"), HasSubstr("line 1")),
                                                     AllOf(HasSubstr("trainer1"), HasSubstr("line 2")),
                                                     AllOf(HasSubstr("trainer1"), HasSubstr("no line"))));
  EXPECT_EQ(policy->denied(), 24u);
  // The lines of another file are other rules.
  text.replace("deny * function f");
  examine();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(policy->check_request(kTrainer, function("f")).ok());
  EXPECT_THAT(captured_lines("may not"), ElementsAre(HasSubstr("line 1")));
}

}  // namespace
}  // namespace gradwire::rpc
