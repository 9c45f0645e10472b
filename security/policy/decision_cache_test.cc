#include "gradwire/security/policy/decision_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::security {
namespace {

PolicyPtr parsed_policy(absl::string_view text) { return *Policy::parse(text, "p"); }
Subject function_subject(absl::string_view name) { return {CalleeClass::kFunction, name}; }

TEST(DecisionCache, AnswersAsThePolicyDoesTwice) {
  const PolicyPtr rules = parsed_policy("allow a* function f\ndeny ab function f\nallow * class S\n");
  DecisionCache cache(rules);
  for (int round = 0; round < 2; ++round) {
    for (const char* caller : {"a", "aa", "ab", "b"}) {
      for (const Subject& subject :
           {function_subject("f"), function_subject("g"), Subject{CalleeClass::kClass, "S"},
            Subject{CalleeClass::kClass, "S::f", "S"}, Subject{CalleeClass::kClass, "S::f"}}) {
        const Decision expected = rules->check(caller, subject);
        const Decision got = cache.check(caller, subject);
        EXPECT_EQ(got.allowed, expected.allowed) << caller << " " << subject.name;
        EXPECT_EQ(got.line, expected.line) << caller << " " << subject.name;
      }
    }
  }
}

TEST(DecisionCache, ANewPolicyReplacesTheAnswers) {
  DecisionCache cache(parsed_policy("allow a function f"));
  EXPECT_TRUE(cache.check("a", function_subject("f")).allowed);
  cache.replace(parsed_policy("deny a function f"));
  EXPECT_FALSE(cache.check("a", function_subject("f")).allowed);
}

TEST(DecisionCache, NamesOfOtherProcessesDoNotFillIt) {
  DecisionCache cache(parsed_policy("allow a* function f*"));
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = absl::StrCat("f", i, std::string(100, 'x'));
    ASSERT_TRUE(cache.check("a", function_subject(name)).allowed);
  }
  // 256 KiB of names of more than 100 bytes.
  EXPECT_LT(cache.size(), 2622u);
  for (int i = 0; i < 10'000; ++i)
    ASSERT_TRUE(cache.check(absl::StrCat("a", i), function_subject("f")).allowed);
  EXPECT_LE(cache.size(), 8 * DecisionCache::kMaxCallers);
  EXPECT_FALSE(cache.check("a", function_subject("f" + std::string(2000, 'x'))).allowed);
}

// Callers that ask while the policy changes get the answer of one policy or of the other.
TEST(DecisionCache, ThreadsAskWhileThePolicyChanges) {
  const PolicyPtr open = parsed_policy("\nallow * function f");
  const PolicyPtr closed = parsed_policy("deny * function f");
  DecisionCache cache(open);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string caller = absl::StrCat("w", i);
      while (!stop) {
        const Decision decision = cache.check(caller, function_subject("f"));
        EXPECT_EQ(decision.line, decision.allowed ? 2 : 1);
      }
    });
  }
  for (int i = 0; i < 200; ++i) cache.replace(i % 2 == 0 ? closed : open);
  cache.replace(closed);
  EXPECT_FALSE(cache.check("w0", function_subject("f")).allowed);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire::security
