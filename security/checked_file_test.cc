#include "gradwire/security/checked_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Rule = FileKind::Rule;

constexpr FileKind kSecret = {.what = "key", .option = "OPTION", .rule = Rule::kSecret, .most = 100};
constexpr FileKind kTrusted = {.what = "policy", .option = "OPTION", .rule = Rule::kTrusted, .most = 100};

// A new path for each call.
std::string path() {
  static int count = 0;
  return absl::StrCat(::testing::TempDir(), "/checked_file_", ::getpid(), "_", ++count);
}

std::string file(const std::string& content, mode_t mode) {
  const std::string name = path();
  std::ofstream(name) << content;
  EXPECT_EQ(::chmod(name.c_str(), mode), 0);
  return name;
}

absl::Status read_status(const std::string& name, const FileKind& kind = kSecret) {
  return read_checked_file(kind, name).status();
}

// The rule for a process of user 1000 in the groups 100 and 200.
absl::Status rights(const FileKind& kind, uid_t owner, gid_t group, mode_t mode, uid_t user = 1000) {
  struct stat status = {};
  status.st_uid = owner;
  status.st_gid = group;
  status.st_mode = S_IFREG | mode;
  return check_rights(kind, "FILE", status, {.user = user, .groups = {100, 200}});
}

TEST(CheckedFile, IsReadIfOnlyItsOwnerCan) {
  for (const mode_t mode : {0600, 0400, 0700}) {
    const absl::StatusOr<CheckedFile> read = read_checked_file(kSecret, file("content\n", mode));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->content.reveal(), "content\n");
  }
}

TEST(CheckedFile, ASecretIsRefusedIfOthersCanReadOrChangeIt) {
  for (const mode_t mode : {0620, 0610, 0604, 0602, 0601, 0644, 0666}) {
    const std::string name = file("content", mode);
    const absl::Status status = read_status(name);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  }
  for (const mode_t mode : {0640, 0440, 0620, 0604}) {
    EXPECT_TRUE(absl::IsPermissionDenied(rights(kSecret, 1000, 100, mode))) << mode;
  }
  EXPECT_TRUE(rights(kSecret, 1000, 100, 0600).ok());
}

// Kubernetes with fsGroup: the file of a secret belongs to root and to a group of the pod, with mode 0440.
// The pod's processes may be those of root, too.
TEST(CheckedFile, ASecretOfRootMayBeReadByAGroupOfThisProcess) {
  for (const uid_t user : {0u, 1000u}) {
    for (const gid_t group : {100u, 200u}) {
      for (const mode_t mode : {0600, 0640, 0440, 0400})
        EXPECT_TRUE(rights(kSecret, 0, group, mode, user).ok()) << mode;
      for (const mode_t mode : {0660, 0650, 0644, 0642, 0641, 0444})
        EXPECT_FALSE(rights(kSecret, 0, group, mode, user).ok()) << mode;
    }
    // Members of another group could read it.
    EXPECT_TRUE(rights(kSecret, 0, 300, 0400, user).ok());
    EXPECT_FALSE(rights(kSecret, 0, 300, 0440, user).ok());
  }
}

TEST(CheckedFile, AGroupOfThisProcessMayReadAFileOfRootOnDisk) {
  GRADWIRE_NEEDS("root", ::geteuid() == 0 ? absl::OkStatus() : absl::UnavailableError("not root"));
  const ProcessUser own = ProcessUser::current();
  const std::string name = file("content", 0440);
  ASSERT_EQ(::chown(name.c_str(), 0, own.groups.back()), 0);
  EXPECT_TRUE(read_status(name).ok()) << read_status(name);
  gid_t other = 54'321;
  while (std::count(own.groups.begin(), own.groups.end(), other) > 0) ++other;
  ASSERT_EQ(::chown(name.c_str(), 0, other), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(read_status(name)));
}

TEST(CheckedFile, ATrustedFileMayBeReadButNotChangedByOthers) {
  for (const mode_t mode : {0600, 0644, 0444, 0640}) {
    EXPECT_TRUE(read_status(file("content", mode), kTrusted).ok()) << mode;
    EXPECT_TRUE(rights(kTrusted, 0, 300, mode).ok());
  }
  for (const mode_t mode : {0664, 0646, 0666, 0620}) {
    EXPECT_TRUE(absl::IsPermissionDenied(read_status(file("content", mode), kTrusted))) << mode;
    EXPECT_FALSE(rights(kTrusted, 0, 100, mode).ok());
  }
  EXPECT_FALSE(rights(kTrusted, 1001, 100, 0600).ok());
}

TEST(CheckedFile, ErrorsNameModeOwnerAndTheExactCommand) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_EQ(message(rights(kSecret, 1000, 100, 0644)),
            "the key FILE can be read or changed by all users: it has mode 0644 and belongs to user 1000 and "
            "group 100, expected mode 0600 or 0400; run: chmod 600 FILE");
  EXPECT_EQ(message(rights(kSecret, 1000, 100, 0440)),
            "the key FILE can be read or changed by its group: it has mode 0440 and belongs to user 1000 and "
            "group 100, expected mode 0600 or 0400; run: chmod 600 FILE");
  EXPECT_EQ(message(rights(kSecret, 0, 100, 0444)),
            "the key FILE can be read or changed by all users: it has mode 0444 and belongs to user 0 and "
            "group 100, expected mode 0440 or 0400; run as root: chmod 440 FILE");
  EXPECT_EQ(message(rights(kSecret, 0, 100, 0644, /*user=*/0)),
            "the key FILE can be read or changed by all users: it has mode 0644 and belongs to user 0 and "
            "group 100, expected mode 0600 or 0400; run: chmod 600 FILE");
  EXPECT_EQ(message(rights(kSecret, 0, 300, 0440)),
            "the key FILE can be read or changed by its group: it has mode 0440 and belongs to user 0 and "
            "group 300, expected mode 0600 or 0400; run as root: chown 1000 FILE && chmod 600 FILE");
  EXPECT_EQ(message(rights(kSecret, 1001, 100, 0600)),
            "the key FILE belongs to another user: it has mode 0600 and belongs to user 1001 and group 100, "
            "expected user 1000 (of this process) or root; run as root: chown 1000 FILE && chmod 600 FILE");
  EXPECT_EQ(
      message(rights(kTrusted, 1000, 100, 0664)),
      "the policy FILE can be changed by its group: it has mode 0664 and belongs to user 1000 and group "
      "100, expected mode 0644 or 0600; run: chmod go-w FILE");
  EXPECT_EQ(message(rights(kTrusted, 1001, 100, 0600)),
            "the policy FILE belongs to another user: it has mode 0600 and belongs to user 1001 and group "
            "100, expected user 1000 (of this process) or root; run as root: chown 1000 FILE");
}

TEST(CheckedFile, CommandsQuoteThePath) {
  const std::string name = file("content", 0644) + " it's";
  ASSERT_EQ(::rename(name.substr(0, name.size() - 5).c_str(), name.c_str()), 0);
  EXPECT_THAT(std::string(read_status(name).message()), HasSubstr("run: chmod 600 '/"));
  EXPECT_THAT(std::string(read_status(name).message()), HasSubstr(" it'\\''s'"));
}

TEST(CheckedFile, OfAnotherUserIsRefused) {
  GRADWIRE_NEEDS("root", ::geteuid() == 0 ? absl::OkStatus() : absl::UnavailableError("not root"));
  const std::string name = file("content", 0600);
  ASSERT_EQ(::chown(name.c_str(), 12'345, 12'345), 0);
  for (const FileKind& kind : {kSecret, kTrusted}) {
    const absl::Status status = read_status(name, kind);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("mode 0600 and belongs to user 12345"), HasSubstr("chown 0 " + name)));
  }
}

// The rule is about the file, not about the link.
TEST(CheckedFile, LinksAreFollowed) {
  const std::string good = path(), bad = path();
  ASSERT_EQ(::symlink(file("content", 0600).c_str(), good.c_str()), 0);
  ASSERT_EQ(::symlink(file("content", 0644).c_str(), bad.c_str()), 0);
  EXPECT_TRUE(read_status(good).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(read_status(bad)));
}

TEST(CheckedFile, IsARegularFile) {
  const std::string pipe = path();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& name : {pipe, ::testing::TempDir(), std::string("/dev/null")}) {
    const absl::Status status = read_status(name);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(),
              absl::StrCat("the key ", name, " is not a regular file; give the path of a file in OPTION"));
  }
}

TEST(CheckedFile, IsNotLargerThanExpected) {
  EXPECT_TRUE(read_status(file(std::string(100, 'x'), 0600)).ok());
  const absl::Status status = read_status(file(std::string(101, 'x'), 0600));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is too large: got more than 100 bytes"));
}

TEST(CheckedFile, AMissingFileIsNamed) {
  const absl::Status status = read_status("/nowhere/FILE");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(),
            "cannot open the key /nowhere/FILE: No such file or directory; create it, or correct OPTION");
}

TEST(CheckedFile, AFileThatThisProcessMayNotReadIsNamedWithItsOwner) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  std::string folder = "/tmp/checked_file_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string name = folder + "/FILE";
  std::ofstream(name) << "content";
  ASSERT_EQ(::chmod(name.c_str(), 0600), 0);
  {
    OtherUser other([](const std::string& path) { return std::string(read_status(path).message()); });
    EXPECT_EQ(other.ask(name),
              absl::StrCat("cannot open the key ", name,
                           ": Permission denied; user 65534 (of this process) may not enter the folder ",
                           folder, "; run as its owner: chmod o+x ", folder));
    ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
    EXPECT_EQ(
        other.ask(name),
        absl::StrCat("cannot open the key ", name,
                     ": Permission denied; it has mode 0600 and belongs to user 0 and group ", ::getegid(),
                     ", but this process runs as user 65534; run as root: chown 65534 ", name));
  }
  ::unlink(name.c_str());
  ::rmdir(folder.c_str());
}

TEST(CheckedFile, TheStampDiffersAfterAChange) {
  const std::string name = file("content", 0600);
  const absl::StatusOr<CheckedFile> read = read_checked_file(kSecret, name);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->stamp, stamp_of(name));
  const std::string next = file("another", 0600);
  ASSERT_EQ(::rename(next.c_str(), name.c_str()), 0);
  EXPECT_FALSE(read->stamp == stamp_of(name));
  ASSERT_EQ(::unlink(name.c_str()), 0);
  EXPECT_EQ(stamp_of(name), FileStamp());
}

}  // namespace
}  // namespace gradwire::security
