#include "gradwire/security/token/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kTokenInFile(32, 't');

// A new path for each call.
std::string path() {
  static int count = 0;
  return absl::StrCat(::testing::TempDir(), "/token_file_", ::getpid(), "_", ++count);
}

std::string file(const std::string& content, mode_t mode = 0600) {
  const std::string name = path();
  std::ofstream(name) << content;
  EXPECT_EQ(::chmod(name.c_str(), mode), 0);
  return name;
}

std::string token_in(const std::string& content) {
  const absl::StatusOr<Secret> token = read_token_file(file(content));
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? std::string(token->reveal()) : std::string();
}

TEST(TokenFile, OneNewlineAtTheEndIsIgnored) {
  EXPECT_EQ(token_in(kTokenInFile), kTokenInFile);
  EXPECT_EQ(token_in(kTokenInFile + "\n"), kTokenInFile);
  EXPECT_EQ(token_in(kTokenInFile + "\n\n"), kTokenInFile + "\n");
  EXPECT_EQ(token_in(" " + kTokenInFile + " \n"), " " + kTokenInFile + " ");
}

TEST(TokenFile, AShortTokenIsRefusedWithTheWayToMakeOne) {
  for (const std::string& content : {std::string(), std::string("\n"), std::string(31, 't') + "\n"}) {
    const std::string name = file(content);
    const absl::Status status = read_token_file(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("the token in ", name, " has ")));
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(absl::StrCat(
            "bytes, expected at least 32; make one with: (umask 077; openssl rand -hex 32 > ", name, ")")));
  }
}

TEST(TokenFile, HasAtMostFourKibibytes) {
  EXPECT_EQ(token_in(std::string(4096, 'x')).size(), 4096u);
  EXPECT_TRUE(absl::IsInvalidArgument(read_token_file(file(std::string(4097, 'x'))).status()));
}

TEST(TokenFile, ThatOthersCanReadIsRefused) {
  const std::string name = file(kTokenInFile, 0644);
  const absl::Status status = read_token_file(name).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("the token file ", name,
                                           " can be read or changed by all users: it has mode 0644")),
                    HasSubstr(absl::StrCat("run: chmod 600 ", name))));
}

TEST(TokenFile, AMadeTokenSurvivesItsFile) {
  const Secret token = make_token();
  EXPECT_EQ(token.size(), 64u);
  const absl::string_view digits = token.reveal();
  EXPECT_TRUE(
      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }));
  EXPECT_FALSE(token == make_token());
  const std::string name = path();
  ASSERT_TRUE(create_token_file(name, token).ok());
  const absl::StatusOr<Secret> read = read_token_file(name);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == token);
  EXPECT_TRUE(absl::IsAlreadyExists(create_token_file(name, token)));
}

}  // namespace
}  // namespace gradwire::security
