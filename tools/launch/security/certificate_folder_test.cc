#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "gradwire/security/security_options.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/tools/launch/security/job_security.h"

namespace gradwire::tools {
namespace {

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST(CertificateFolder, FilesAreForThisUserAndCanBeUsed) {
  const absl::StatusOr<CertificateFolder> folder = CertificateFolder::create("4711.0");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(mode_of(folder->path()), 0700u);
  for (const char* name : {"launcher", "trainer0", "a:b"}) {
    const absl::StatusOr<SecurityOptions> files = folder->files_for(name);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(mode_of(files->key_file), 0600u);
    EXPECT_TRUE(security::make_credentials(*files).ok()) << security::make_credentials(*files).status();
    EXPECT_EQ(folder->files_for(name)->key_file, files->key_file);
  }
  EXPECT_NE(folder->files_for("a")->key_file, folder->files_for("b")->key_file);
}

TEST(CertificateFolder, IsRemovedWithItsFiles) {
  std::string path;
  {
    CertificateFolder folder = *CertificateFolder::create("job");
    path = folder.path();
    ASSERT_TRUE(folder.files_for("a").ok());
    const CertificateFolder moved = std::move(folder);
    EXPECT_EQ(moved.path(), path);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(CertificateFolder, NamesOfWorkersAreChecked) {
  const CertificateFolder folder = *CertificateFolder::create("an id with spaces");
  EXPECT_TRUE(folder.files_for("a").ok());
  for (const char* name : {"", "../a", "a b"}) {
    EXPECT_EQ(folder.files_for(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace gradwire::tools
