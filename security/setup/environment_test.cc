#include "gradwire/security/setup/environment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/security/setup/inherited_token.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;

const std::string kToken(32, 't');

// Each test begins without variables.
class Environment : public ::testing::Test {
 protected:
  Environment() {
    for (const char* variable :
         {"GRADWIRE_TOKEN_FILE", "GRADWIRE_CERTIFICATE_FILE", "GRADWIRE_KEY_FILE", "GRADWIRE_AUTHORITY_FILE",
          "GRADWIRE_JOB", "GRADWIRE_POLICY_FILE", "GRADWIRE_INSECURE"})
      ::unsetenv(variable);
  }

  static void set(const char* variable, const std::string& value) { ::setenv(variable, value.c_str(), 1); }
  static void set_certificates() {
    set("GRADWIRE_CERTIFICATE_FILE", "CERTIFICATE");
    set("GRADWIRE_KEY_FILE", "KEY");
    set("GRADWIRE_AUTHORITY_FILE", "AUTHORITY");
  }
  static SecurityOptions filled(SecurityOptions given = {}) {
    absl::StatusOr<SecurityOptions> options = with_environment(std::move(given));
    EXPECT_TRUE(options.ok()) << options.status();
    return *options;
  }
};

TEST_F(Environment, NothingSetLeavesTheDefaults) {
  const SecurityOptions options = filled();
  EXPECT_TRUE(options.token.empty());
  EXPECT_EQ(options.token_file, "");
  EXPECT_EQ(options.certificate_file, "");
  EXPECT_EQ(options.policy_file, "");
  EXPECT_FALSE(options.insecure);
  EXPECT_TRUE(options.check_addresses);
}

TEST_F(Environment, FillsEmptyOptions) {
  set("GRADWIRE_TOKEN_FILE", "TOKEN");
  set("GRADWIRE_POLICY_FILE", "POLICY");
  EXPECT_EQ(filled().token_file, "TOKEN");
  EXPECT_EQ(filled().policy_file, "POLICY");
  EXPECT_EQ(filled({.policy_file = "OTHER"}).policy_file, "OTHER");
  set("GRADWIRE_JOB", "JOB");
  EXPECT_EQ(filled().job, "JOB");
  EXPECT_EQ(filled({.job = "OTHER"}).job, "OTHER");
  set("GRADWIRE_TOKEN_FILE", "");
  set_certificates();
  const SecurityOptions options = filled();
  EXPECT_EQ(options.certificate_file, "CERTIFICATE");
  EXPECT_EQ(options.key_file, "KEY");
  EXPECT_EQ(options.authority_file, "AUTHORITY");
  EXPECT_EQ(options.token_file, "");
}

TEST_F(Environment, TheProofThatCodeGivesWins) {
  set("GRADWIRE_TOKEN_FILE", "TOKEN");
  set_certificates();
  set("GRADWIRE_INSECURE", "1");
  for (const SecurityOptions& given :
       {SecurityOptions{.token = kToken}, SecurityOptions{.token_file = "OTHER"},
        SecurityOptions{.insecure = true}}) {
    const SecurityOptions options = filled(given);
    EXPECT_TRUE(options.token == given.token);
    EXPECT_EQ(options.token_file, given.token_file);
    EXPECT_EQ(options.certificate_file, "");
    EXPECT_EQ(options.key_file, "");
    EXPECT_EQ(options.authority_file, "");
    EXPECT_EQ(options.insecure, given.insecure);
  }
  const SecurityOptions options = filled({.authority_file = "OTHER"});
  EXPECT_EQ(options.certificate_file, "CERTIFICATE");
  EXPECT_EQ(options.key_file, "KEY");
  EXPECT_EQ(options.authority_file, "OTHER");
  EXPECT_EQ(options.token_file, "");
  EXPECT_FALSE(options.insecure);
}

TEST_F(Environment, ATokenBesideCertificatesIsRefused) {
  set("GRADWIRE_TOKEN_FILE", "TOKEN");
  set("GRADWIRE_KEY_FILE", "KEY");
  const absl::Status status = with_environment({}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(
      status.message(),
      "the environment has both a token (GRADWIRE_TOKEN_FILE) and certificates (GRADWIRE_CERTIFICATE_FILE, "
      "GRADWIRE_KEY_FILE, GRADWIRE_AUTHORITY_FILE), expected one of them; remove the variables of the other "
      "one");
}

TEST_F(Environment, InsecureIsAChoiceOnlyWithoutAProof) {
  set("GRADWIRE_INSECURE", "1");
  EXPECT_TRUE(filled().insecure);
  set("GRADWIRE_INSECURE", "0");
  EXPECT_FALSE(filled().insecure);
  EXPECT_TRUE(filled({.insecure = true}).insecure);
  set("GRADWIRE_INSECURE", "1");
  set("GRADWIRE_TOKEN_FILE", "TOKEN");
  EXPECT_FALSE(filled().insecure);
  EXPECT_EQ(filled().token_file, "TOKEN");
  for (const char* const value : {"yes", "true", "2", " 1"}) {
    set("GRADWIRE_INSECURE", value);
    const absl::Status status = with_environment({}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(),
              absl::StrCat("malformed GRADWIRE_INSECURE: got \"", value, "\", expected 0 or 1"));
  }
}

// The process keeps the token of its launcher, so these tests run in processes of their own.
class LaunchedProcess : public Environment {
 protected:
  LaunchedProcess() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[noreturn]] static void end() { std::_Exit(HasFailure() ? 1 : 0); }

  // As a worker with several agents.
  static void read_the_token_often() {
    const absl::StatusOr<Descriptor> token = token_descriptor(Secret(kToken));
    ASSERT_TRUE(token.ok()) << token.status();
    const int number = ::fcntl(token->get(), F_DUPFD, 100);
    set("GRADWIRE_TOKEN_FD", absl::StrCat(number));
    // The inherited token wins over this file.
    set("GRADWIRE_TOKEN_FILE", "TOKEN");
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([] {
        const SecurityOptions options = filled();
        EXPECT_TRUE(options.token == kToken);
        EXPECT_EQ(options.token_file, "");
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(filled().token == kToken);
    EXPECT_TRUE(filled({.token_file = "OTHER"}).token.empty());
    EXPECT_EQ(std::getenv("GRADWIRE_TOKEN_FD"), nullptr);
    EXPECT_LT(::fcntl(number, F_GETFD), 0);
    set_certificates();
    EXPECT_THAT(std::string(with_environment({}).status().message()),
                HasSubstr("has both a token (GRADWIRE_TOKEN_FD) and certificates"));
  }

  // Code gives a proof, so that nothing depends on the variable.
  static void need_no_descriptor() {
    set("GRADWIRE_TOKEN_FD", "seven");
    EXPECT_TRUE(filled({.token = kToken}).token == kToken);
    EXPECT_TRUE(filled({.insecure = true}).insecure);
    const absl::Status status = with_environment({}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("GRADWIRE_TOKEN_FD=seven"));
  }

  // The token does not stay for children, even if this process does not use it.
  static void give_another_token() {
    const absl::StatusOr<Descriptor> token = token_descriptor(Secret(kToken));
    ASSERT_TRUE(token.ok()) << token.status();
    const int number = ::fcntl(token->get(), F_DUPFD, 100);
    set("GRADWIRE_TOKEN_FD", absl::StrCat(number));
    EXPECT_EQ(filled({.token_file = "OTHER"}).token_file, "OTHER");
    EXPECT_EQ(std::getenv("GRADWIRE_TOKEN_FD"), nullptr);
    EXPECT_LT(::fcntl(number, F_GETFD), 0);
  }
};

TEST_F(LaunchedProcess, GivesTheSameTokenToAllCallers) {
  EXPECT_EXIT((read_the_token_often(), end()), ::testing::ExitedWithCode(0), "");
}

TEST_F(LaunchedProcess, AWrongDescriptorMattersOnlyIfItIsNeeded) {
  EXPECT_EXIT((need_no_descriptor(), end()), ::testing::ExitedWithCode(0), "");
}

TEST_F(LaunchedProcess, TakesAlsoATokenThatItDoesNotUse) {
  EXPECT_EXIT((give_another_token(), end()), ::testing::ExitedWithCode(0), "");
}

// Each of them is wiped when the last copy ends (secret_test.cc).
TEST_F(Environment, CopiesOfATokenShareOnePlaceInMemory) {
  std::string text = kToken;
  const SecurityOptions options{.token = std::move(text)};
  EXPECT_EQ(text, "");
  const Secret secret = options.token.secret();
  const char* const place = secret.reveal().data();
  const SecurityOptions copy = options;
  for (const Secret& each : {copy.token.secret(), filled(copy).token.secret(), *token_of(copy)})
    EXPECT_EQ(each.reveal().data(), place);
}

TEST_F(Environment, TokenOfOptions) {
  EXPECT_TRUE(token_of({})->empty());
  EXPECT_EQ(token_of({.token = kToken})->reveal(), kToken);
  const std::string file = absl::StrCat(::testing::TempDir(), "/environment_token_", ::getpid());
  std::ofstream(file) << kToken << "\n";
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  const absl::StatusOr<Secret> token = token_of({.token_file = file});
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->reveal(), kToken);
  EXPECT_TRUE(absl::IsNotFound(token_of({.token_file = "/nowhere/TOKEN"}).status()));
  EXPECT_THAT(std::string(token_of({.token = "short"}).status().message()),
              HasSubstr("the token has 5 bytes, expected at least 32"));
  EXPECT_TRUE(absl::IsInvalidArgument(token_of({.token = kToken, .token_file = file}).status()));
}

}  // namespace
}  // namespace gradwire::security
