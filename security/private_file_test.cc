#include "gradwire/security/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/test_needs.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using testing::HasSubstr;

constexpr std::size_t kMost = 100;

// A new path for each call.
std::string path() {
  static int count = 0;
  return absl::StrCat(testing::TempDir(), "/private_file_", ::getpid(), "_", ++count);
}

std::string file(const std::string& content, mode_t mode) {
  const std::string name = path();
  std::ofstream(name) << content;
  EXPECT_EQ(::chmod(name.c_str(), mode), 0);
  return name;
}

absl::Status read_status(const std::string& name) { return read_private_file("key", name, kMost).status(); }

TEST(PrivateFile, IsReadIfOnlyItsOwnerCan) {
  for (const mode_t mode : {0600, 0400, 0700}) {
    const absl::StatusOr<Secret> secret = read_private_file("key", file("content\n", mode), kMost);
    ASSERT_TRUE(secret.ok()) << secret.status();
    EXPECT_EQ(secret->reveal(), "content\n");
  }
}

TEST(PrivateFile, IsRefusedIfOthersCanReadOrChangeIt) {
  for (const mode_t mode : {0640, 0620, 0610, 0604, 0602, 0601, 0644, 0666}) {
    const std::string name = file("content", mode);
    const absl::Status status = read_status(name);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    if (mode == 0644) {
      EXPECT_EQ(status.message(), absl::StrCat("the key \"", name,
                                               "\" can be read or changed by other users: got mode 0644, "
                                               "expected 0600; run: chmod 600 ",
                                               name));
    }
  }
}

// Kubernetes: the file of a secret belongs to root and to the group of the pod.
TEST(PrivateFile, OfRootMayBeReadByAGroup) {
  const auto check = [](uid_t owner, mode_t mode) {
    struct stat status = {};
    status.st_uid = owner;
    status.st_mode = S_IFREG | mode;
    return check_private("key", "FILE", status, 1000);
  };
  EXPECT_TRUE(check(1000, 0600).ok());
  EXPECT_FALSE(check(1000, 0640).ok());
  EXPECT_TRUE(check(0, 0600).ok());
  EXPECT_TRUE(check(0, 0640).ok());
  EXPECT_TRUE(check(0, 0440).ok());
  for (const mode_t mode : {0660, 0650, 0644, 0642, 0641}) EXPECT_FALSE(check(0, mode).ok()) << mode;
  EXPECT_EQ(check(1001, 0600).message(),
            "the key \"FILE\" belongs to user 1001, expected user 1000 or root; run: chown 1000 FILE");
}

TEST(PrivateFile, OfAnotherUserIsRefused) {
  GRADWIRE_NEEDS("root", ::geteuid() == 0 ? absl::OkStatus() : absl::UnavailableError("not root"));
  const std::string name = file("content", 0600);
  ASSERT_EQ(::chown(name.c_str(), 12'345, 12'345), 0);
  const absl::Status status = read_status(name);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user 12345, expected user 0 or root"));
}

// The rule is about the file, not about the link.
TEST(PrivateFile, LinksAreFollowed) {
  const std::string good = path(), bad = path();
  ASSERT_EQ(::symlink(file("content", 0600).c_str(), good.c_str()), 0);
  ASSERT_EQ(::symlink(file("content", 0644).c_str(), bad.c_str()), 0);
  EXPECT_TRUE(read_status(good).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(read_status(bad)));
}

TEST(PrivateFile, IsARegularFile) {
  const std::string pipe = path();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& name : {pipe, testing::TempDir(), std::string("/dev/null")}) {
    const absl::Status status = read_status(name);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not a regular file"));
  }
}

TEST(PrivateFile, IsNotLargerThanExpected) {
  EXPECT_TRUE(read_status(file(std::string(kMost, 'x'), 0600)).ok());
  const absl::Status status = read_status(file(std::string(kMost + 1, 'x'), 0600));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has more than 100 bytes"));
}

TEST(PrivateFile, AMissingFileIsNamed) {
  const absl::Status status = read_status("/nowhere/FILE");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "cannot open the key \"/nowhere/FILE\": No such file or directory");
}

TEST(PrivateFile, IsCreatedForItsOwnerOnly) {
  const std::string name = path();
  const mode_t before = ::umask(0277);
  const absl::Status created = create_private_file("key", name, Secret("content"));
  ::umask(before);
  ASSERT_TRUE(created.ok()) << created;
  struct stat status = {};
  ASSERT_EQ(::stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const absl::StatusOr<Secret> secret = read_private_file("key", name, kMost);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->reveal(), "content");
}

TEST(PrivateFile, IsNotCreatedOverAnotherOne) {
  const std::string existing = file("mine", 0600);
  const std::string link = path();
  ASSERT_EQ(::symlink("/nowhere/FILE", link.c_str()), 0);
  for (const std::string& name : {existing, link}) {
    const absl::Status status = create_private_file("key", name, Secret("content"));
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("cannot create the key \"", name, "\"")));
  }
  std::ifstream stream(existing);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "mine");
}

}  // namespace
}  // namespace gradwire::security
