#include "gradwire/base/process/users_directory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace gradwire {
namespace {

TEST(UsersDirectory, OnlyAProgramInItsRunfilesLeavesThem) {
  const std::filesystem::path folder = std::filesystem::canonical(::testing::TempDir());
  const std::filesystem::path user = folder / "user";
  const std::filesystem::path runfiles = folder / "program.runfiles" / "workspace";
  std::filesystem::create_directories(user);
  std::filesystem::create_directories(runfiles);

  std::filesystem::current_path(runfiles);
  unsetenv("BUILD_WORKING_DIRECTORY");
  return_to_users_directory();
  EXPECT_EQ(std::filesystem::current_path(), runfiles);

  setenv("BUILD_WORKING_DIRECTORY", user.c_str(), 1);
  return_to_users_directory();
  EXPECT_EQ(std::filesystem::current_path(), user);

  std::filesystem::current_path(folder);
  return_to_users_directory();
  EXPECT_EQ(std::filesystem::current_path(), folder);
}

}  // namespace
}  // namespace gradwire
