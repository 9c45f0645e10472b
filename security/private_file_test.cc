#include "gradwire/security/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/secret.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;

// A new path for each call.
std::string unused_path() {
  static int count = 0;
  return absl::StrCat(::testing::TempDir(), "/private_file_", ::getpid(), "_", ++count);
}

std::string existing_file(const std::string& content, mode_t mode) {
  const std::string name = unused_path();
  std::ofstream(name) << content;
  EXPECT_EQ(::chmod(name.c_str(), mode), 0);
  return name;
}

TEST(PrivateFile, IsCreatedForItsOwnerOnly) {
  const std::string name = unused_path();
  const mode_t before = ::umask(0277);
  const absl::Status created = create_private_file("key", name, Secret("content"));
  ::umask(before);
  ASSERT_TRUE(created.ok()) << created;
  struct stat status = {};
  ASSERT_EQ(::stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const absl::StatusOr<CheckedFile> file = read_checked_file({.what = "key", .most = 100}, name);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->content.reveal(), "content");
}

TEST(PrivateFile, IsNotCreatedOverAnotherOne) {
  const std::string existing = existing_file("mine", 0600);
  const std::string link = unused_path();
  ASSERT_EQ(::symlink("/nowhere/FILE", link.c_str()), 0);
  for (const std::string& name : {existing, link}) {
    const absl::Status status = create_private_file("key", name, Secret("content"));
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("cannot create the key ", name, ": File exists; remove it first")));
  }
  std::ifstream stream(existing);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "mine");
}

}  // namespace
}  // namespace gradwire::security
