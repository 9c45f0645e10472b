#include "gradwire/security/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/security/policy/policy_parser.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PolicyPtr policy(absl::string_view text) {
  absl::StatusOr<PolicyPtr> parsed = Policy::parse(text, "p");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : nullptr;
}

std::string error(absl::string_view text) {
  const absl::Status status = Policy::parse(text, "p").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

Subject function(absl::string_view name) { return {CalleeClass::kFunction, name}; }
Subject method(absl::string_view name) {
  return {CalleeClass::kClass, name, name.substr(0, name.rfind("::"))};
}

TEST(Policy, AnswersByCallerKindAndName) {
  const PolicyPtr p = policy(
      "# who may train\n"
      "allow trainer* function ps::push, ps::pull   # both\n"
      "\n"
      "allow evaluator*,probe class ParameterServer\n"
      "allow * service barrier\r\n"
      "allow ops everything");
  EXPECT_TRUE(p->check("trainer0", function("ps::push")).allowed);
  EXPECT_TRUE(p->check("trainer", function("ps::pull")).allowed);
  EXPECT_EQ(p->check("trainer", function("ps::pull")).line, 2);
  EXPECT_FALSE(p->check("trainer0", function("ps::pushed")).allowed);
  EXPECT_FALSE(p->check("atrainer0", function("ps::push")).allowed);
  EXPECT_FALSE(p->check("trainer0", {CalleeClass::kScript, "ps::push"}).allowed);
  EXPECT_FALSE(p->check("trainer0", {CalleeClass::kClass, "ParameterServer"}).allowed);
  EXPECT_TRUE(p->check("probe", {CalleeClass::kClass, "ParameterServer"}).allowed);
  EXPECT_TRUE(p->check("evaluator7", method("ParameterServer::pull")).allowed);
  EXPECT_TRUE(p->check("anybody", {CalleeClass::kService, "barrier"}).allowed);
  EXPECT_FALSE(p->check("anybody", {CalleeClass::kService, "autograd"}).allowed);
  for (std::size_t kind = 0; kind < kCalleeClasses; ++kind) {
    EXPECT_TRUE(p->check("ops", {static_cast<CalleeClass>(kind), "x"}).allowed) << kind;
  }
}

TEST(Policy, DenyWinsWhereverItStands) {
  const PolicyPtr p = policy(
      "deny * operator aten::rand*\n"
      "allow a everything\n"
      "deny a function f\n"
      "allow a function f\n"
      "deny b everything\n"
      "allow b function f\n");
  EXPECT_EQ(p->check("a", {CalleeClass::kOperator, "aten::randn"}).line, 1);
  EXPECT_FALSE(p->check("a", {CalleeClass::kOperator, "aten::randn"}).allowed);
  EXPECT_TRUE(p->check("a", {CalleeClass::kOperator, "aten::add"}).allowed);
  EXPECT_FALSE(p->check("a", function("f")).allowed);
  EXPECT_EQ(p->check("a", function("f")).line, 3);
  EXPECT_TRUE(p->check("a", function("g")).allowed);
  EXPECT_FALSE(p->check("b", function("f")).allowed);
  EXPECT_EQ(p->check("b", function("f")).line, 5);
}

TEST(Policy, NamesTheFirstLineThatDenies) {
  const PolicyPtr p =
      policy("deny * function b*\ndeny * function bad\ndeny * function *d\ndeny * function *\n");
  EXPECT_EQ(p->check("w", function("bad")).line, 1);
  EXPECT_EQ(p->check("w", function("d")).line, 3);
  EXPECT_EQ(p->check("w", function("x")).line, 4);
}

TEST(Policy, WithoutARuleTheDefaultDecides) {
  EXPECT_FALSE(policy("")->check("a", function("f")).allowed);
  EXPECT_EQ(policy("")->check("a", function("f")).line, 0);
  const PolicyPtr open = policy("deny a function f\ndefault allow\n");
  EXPECT_TRUE(open->check("b", function("f")).allowed);
  EXPECT_EQ(open->check("b", function("f")).line, 2);
  EXPECT_FALSE(open->check("a", function("f")).allowed);
  const PolicyPtr closed = policy("default deny\nallow a function f");
  EXPECT_FALSE(closed->check("b", function("f")).allowed);
  EXPECT_EQ(closed->check("b", function("f")).line, 1);
  EXPECT_TRUE(closed->check("a", function("f")).allowed);
}

TEST(Policy, RulesForClassesFitMethodsToo) {
  const PolicyPtr p = policy(
      "allow all class S\n"
      "allow methods class S::*\n"
      "allow pull class S::pull\n"
      "allow make class S\n"
      "deny make class S::*\n");
  const Subject constructor{CalleeClass::kClass, "S"};
  EXPECT_TRUE(p->check("all", constructor).allowed);
  EXPECT_TRUE(p->check("all", method("S::pull")).allowed);
  EXPECT_FALSE(p->check("methods", constructor).allowed);
  EXPECT_TRUE(p->check("methods", method("S::pull")).allowed);
  EXPECT_FALSE(p->check("pull", constructor).allowed);
  EXPECT_TRUE(p->check("pull", method("S::pull")).allowed);
  EXPECT_FALSE(p->check("pull", method("S::push")).allowed);
  EXPECT_TRUE(p->check("make", constructor).allowed);
  EXPECT_FALSE(p->check("make", method("S::pull")).allowed);
  // A nested class is not a method.
  EXPECT_FALSE(p->check("all", {CalleeClass::kClass, "S::Inner"}).allowed);
}

TEST(Policy, QuotesHoldBlanksAndCommas) {
  const PolicyPtr p = policy(R"(allow w function "f<int, long>" , "a\"b\\c", "d#e")");
  EXPECT_TRUE(p->check("w", function("f<int, long>")).allowed);
  EXPECT_TRUE(p->check("w", function("a\"b\\c")).allowed);
  EXPECT_TRUE(p->check("w", function("d#e")).allowed);
  EXPECT_FALSE(p->check("w", function("f<int")).allowed);
  // The lines that error messages advise are accepted.
  for (const char* name : {"plain", "f<int, long>", "a\"b\\c", "d#e", ""}) {
    if (*name == '\0') continue;
    EXPECT_TRUE(
        policy(absl::StrCat("allow w function ", quoted_if_needed(name)))->check("w", function(name)).allowed)
        << name;
  }
}

TEST(Policy, LongNamesFitNoRule) {
  const PolicyPtr p = policy("allow * everything\ndefault allow");
  EXPECT_TRUE(p->check("w", function(std::string(kMaxRuleName, 'x'))).allowed);
  EXPECT_FALSE(p->check("w", function(std::string(kMaxRuleName + 1, 'x'))).allowed);
}

TEST(PolicyErrors, NameLineAndColumn) {
  EXPECT_THAT(error("permit w function f"),
              AllOf(StartsWith("p:1:1: unknown word \"permit\""), HasSubstr("allow, deny, default or #")));
  EXPECT_THAT(error("\n\nallow w functoin f"),
              AllOf(StartsWith("p:3:9: unknown kind \"functoin\""), HasSubstr("write function, class")));
  EXPECT_THAT(error("allow"), StartsWith("p:1:6: expected the callers"));
  EXPECT_THAT(error("allow w"), StartsWith("p:1:8: the kind is missing"));
  EXPECT_THAT(error("allow w function  # f"), StartsWith("p:1:22: expected a name behind function"));
  EXPECT_THAT(error("allow w function f,"), StartsWith("p:1:20: nothing follows the comma"));
  EXPECT_THAT(error("allow w function ,f"), StartsWith("p:1:18: expected a name"));
  EXPECT_THAT(error("allow w function f g"),
              AllOf(StartsWith("p:1:20: \"g\" is too much"), HasSubstr("comma")));
  EXPECT_THAT(error("allow w everything f"), StartsWith("p:1:20: \"f\" is too much"));
  EXPECT_THAT(error("allow w x function f"),
              AllOf(StartsWith("p:1:9: unknown kind \"x\""), HasSubstr("comma")));
  EXPECT_THAT(error("allow w! function f"), AllOf(StartsWith("p:1:7: \"w!\""), HasSubstr("A-Z a-z 0-9")));
  EXPECT_THAT(error("allow w function \"\""), StartsWith("p:1:18: an empty name"));
  EXPECT_THAT(error("allow w function \"f"),
              AllOf(StartsWith("p:1:18: the quote does not end"), HasSubstr("add \"")));
  EXPECT_THAT(error("allow w function \"f\\n\""), StartsWith("p:1:20: unknown escape"));
  EXPECT_THAT(error("allow w function \"f\\"), StartsWith("p:1:20: unknown escape"));
  EXPECT_THAT(error("allow w function f\x01"),
              AllOf(StartsWith("p:1:19: control character"), HasSubstr("\\x01")));
  EXPECT_THAT(error(absl::string_view("allow w function f\0", 19)), StartsWith("p:1:19: control character"));
  EXPECT_THAT(error("default"), StartsWith("p:1:8: expected \"default allow\" or \"default deny\""));
  EXPECT_THAT(error("default maybe"), StartsWith("p:1:9: expected \"default allow\""));
  EXPECT_THAT(error("default deny\ndefault deny"),
              AllOf(StartsWith("p:2:1: a second default"), HasSubstr("line 1")));
}

// A rule that fits nothing would silently not deny what its author wanted to deny.
TEST(PolicyErrors, NamesThatCannotFitAreRefused) {
  EXPECT_THAT(error("deny w service barier"), AllOf(StartsWith("p:1:16: unknown service \"barier\""),
                                                    HasSubstr("autograd, barrier, callees, inspect, ipc")));
  EXPECT_THAT(error("deny w reference delete"),
              AllOf(StartsWith("p:1:18: unknown reference \"delete\""), HasSubstr("fetch, hold or *")));
  EXPECT_THAT(
      error("deny w operator aten::add.Tensor"),
      AllOf(StartsWith("p:1:17: \"aten::add.Tensor\" names an overload"), HasSubstr("all overloads")));
  EXPECT_FALSE(policy("deny w service b*, *\ndeny w reference h*\ndefault allow")
                   ->check("w", {CalleeClass::kReference, "hold"})
                   .allowed);
}

TEST(PolicyErrors, BoundsAreChecked) {
  EXPECT_THAT(error(std::string(kMaxPolicyBytes + 1, ' ')), HasSubstr("at most 1048576"));
  EXPECT_NE(policy(std::string(kMaxPolicyBytes, ' ')), nullptr);
  std::string rules;
  for (std::size_t i = 0; i < kMaxRules; ++i) absl::StrAppend(&rules, "allow w function f", i, "\n");
  const PolicyPtr full = policy(rules);
  EXPECT_TRUE(full->check("w", function("f9999")).allowed);
  EXPECT_EQ(full->check("w", function("f9999")).line, 10'000);
  EXPECT_THAT(error(rules + "allow w function g"), StartsWith("p:10001:1: more than 10000 rules"));
  const std::string longest(kMaxRuleName, 'f');
  EXPECT_TRUE(policy("allow w function " + longest)->check("w", function(longest)).allowed);
  EXPECT_THAT(error("allow w function g, " + longest + "f"), StartsWith("p:1:21: a name of 1025 bytes"));
}

}  // namespace
}  // namespace gradwire::security
