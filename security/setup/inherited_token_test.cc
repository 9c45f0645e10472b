#include "gradwire/security/setup/inherited_token.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;

constexpr const char* kVariable = "GRADWIRE_TOKEN_FD";
const std::string kInheritedToken(64, 't');

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

Descriptor descriptor() {
  absl::StatusOr<Descriptor> made = token_descriptor(Secret(kInheritedToken));
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// As a launcher does in the child: a duplicate that survives exec, and its number in the environment.
int inherit(const Descriptor& token) {
  const int copy = ::fcntl(token.get(), F_DUPFD, 100);
  EXPECT_GE(copy, 100);
  ::setenv(kVariable, absl::StrCat(copy).c_str(), 1);
  return copy;
}

std::string message(const std::string& value) {
  ::setenv(kVariable, value.c_str(), 1);
  InheritedToken token(kVariable);
  const absl::Status status = token.read().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  ::unsetenv(kVariable);
  return std::string(status.message());
}

TEST(TokenDescriptor, CannotBeChanged) {
  const Descriptor token = descriptor();
  EXPECT_EQ(::fcntl(token.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_LT(::pwrite(token.get(), "x", 1, 0), 0);
  EXPECT_LT(::ftruncate(token.get(), 1), 0);
  EXPECT_LT(::ftruncate(token.get(), 1000), 0);
  struct stat status = {};
  ASSERT_EQ(::fstat(token.get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0400u);
}

TEST(InheritedToken, IsReadOnceAndThenGone) {
  const int number = inherit(descriptor());
  InheritedToken token(kVariable);
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Secret> read = token.read();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->reveal(), kInheritedToken);
    EXPECT_FALSE(is_open(number));
    EXPECT_EQ(std::getenv(kVariable), nullptr);
  }
  // One secret in memory for all callers.
  EXPECT_EQ(token.read()->reveal().data(), token.read()->reveal().data());
}

TEST(InheritedToken, IsEmptyWithoutTheVariable) {
  for (const bool set : {false, true}) {
    set ? ::setenv(kVariable, "", 1) : ::unsetenv(kVariable);
    InheritedToken token(kVariable);
    const absl::StatusOr<Secret> read = token.read();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read->empty());
  }
}

// The programs of one worker share the offset of the file.
TEST(InheritedToken, SeveralProgramsReadTheSameDescriptor) {
  const Descriptor shared = descriptor();
  for (int program = 0; program < 2; ++program) {
    inherit(shared);
    InheritedToken token(kVariable);
    const absl::StatusOr<Secret> read = token.read();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->reveal(), kInheritedToken);
  }
}

// A shell stands for a program between the launcher and the worker.
TEST(InheritedToken, SurvivesExec) {
  const Descriptor shared = descriptor();
  const int number = inherit(shared);
  EXPECT_EQ(
      std::system(absl::StrCat("test \"$(cat /proc/self/fd/", number, ")\" = ", kInheritedToken).c_str()), 0);
  InheritedToken token(kVariable);
  ASSERT_TRUE(token.read().ok());
  // The children of the worker do not inherit it.
  EXPECT_NE(std::system(absl::StrCat("test -e /proc/self/fd/", number).c_str()), 0);
  EXPECT_EQ(std::system(absl::StrCat("test -z \"$", kVariable, "\"").c_str()), 0);
}

TEST(InheritedToken, ConcurrentReadersGetTheSame) {
  inherit(descriptor());
  InheritedToken token(kVariable);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&token] {
      const absl::StatusOr<Secret> read = token.read();
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->reveal(), kInheritedToken);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InheritedToken, AWrongNumberIsRefused) {
  EXPECT_EQ(
      message("seven"),
      "no token from the launcher: GRADWIRE_TOKEN_FD=seven is not the number of a descriptor; start the "
      "program by the launcher without a program in between that closes or changes descriptors, or give the "
      "token in a file: GRADWIRE_TOKEN_FILE");
  EXPECT_THAT(message("-1"), HasSubstr("GRADWIRE_TOKEN_FD=-1 is not the number of a descriptor;"));
  EXPECT_THAT(message("1000"), HasSubstr("GRADWIRE_TOKEN_FD=1000 is not open;"));
}

// The number belongs to another file now. It must stay open, because its owner uses it.
TEST(InheritedToken, AnotherFileIsRefusedAndStaysOpen) {
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(message(absl::StrCat(null.get())), HasSubstr(" is not a sealed memory file;"));
  EXPECT_TRUE(is_open(null.get()));
  const Descriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_THAT(message(absl::StrCat(unsealed.get())), HasSubstr(" is not a sealed memory file;"));
  EXPECT_TRUE(is_open(unsealed.get()));
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const Descriptor out(pipe[0]), in(pipe[1]);
  EXPECT_THAT(message(absl::StrCat(out.get())), HasSubstr(" is not a sealed memory file;"));
}

TEST(InheritedToken, AFileOfAnotherSizeIsRefused) {
  for (const std::size_t size : {0, 4097}) {
    const absl::StatusOr<Descriptor> made = token_descriptor(Secret(std::string(size, 'x')));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_THAT(message(absl::StrCat(made->get())),
                HasSubstr("has no token, or one of more than 4096 bytes;"));
  }
}

TEST(InheritedToken, AFailureStays) {
  ::setenv(kVariable, "seven", 1);
  InheritedToken token(kVariable);
  EXPECT_TRUE(absl::IsInvalidArgument(token.read().status()));
  inherit(descriptor());
  EXPECT_TRUE(absl::IsInvalidArgument(token.read().status()));
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace gradwire::security
