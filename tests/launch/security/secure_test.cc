// Jobs with certificates: those that the launcher makes (--secure), and those of files.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gradwire/base/free_port.h"
#include "gradwire/security/authority/job_authority.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/security/protection.h"

namespace gradwire::tests {
namespace {

constexpr char kShowFilesAndWait[] = "echo $MASTER_PORT $GRADWIRE_KEY_FILE >&9; exec sleep 1000";

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> all = lines(text);
  std::sort(all.begin(), all.end());
  return all;
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST(LaunchSecure, WorkersCallEachOtherByTls) {
  LaunchProcess launch(
      {"--standalone", "--secure", "--nproc_per_node=3", "tests/launch/security/calling_worker", "tcp"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(sorted_lines(launch.out()), (std::vector<std::string>{"40", "41", "42"}));
}

TEST(LaunchSecure, NamesOfWorkersAreThoseOfTheOption) {
  LaunchProcess launch({"--standalone", "--secure", "--nproc_per_node=2", "--worker_name=worker{rank}",
                        "tests/launch/security/calling_worker", "any", "worker"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(sorted_lines(launch.out()), (std::vector<std::string>{"40", "41"}));
}

TEST(LaunchSecure, WorkerWithAnotherNameThanItsCertificateIsRefused) {
  LaunchProcess launch({"--standalone", "--secure", "--nproc_per_node=2",
                        "tests/launch/security/calling_worker", "tcp", "other"});
  EXPECT_NE(launch.wait(), 0);
  EXPECT_TRUE(absl::StrContains(launch.err(), "other")) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "default")) << launch.err();
}

TEST(LaunchSecure, KeysAreForThisUserAndAreRemovedWithTheJob) {
  LaunchProcess launch(with_script({"--standalone", "--secure"}, kShowFilesAndWait));
  const std::vector<std::string> shown = absl::StrSplit(launch.events(1).at(0), ' ');
  ASSERT_EQ(shown.size(), 2u);
  const std::string folder = std::filesystem::path(shown[1]).parent_path();
  EXPECT_EQ(mode_of(folder), 0700u);
  EXPECT_EQ(mode_of(shown[1]), 0600u);
  EXPECT_EQ(try_store(std::stoi(shown[0]),
                      SecurityOptions{.certificate_file = absl::StrCat(folder, "/default0.certificate.pem"),
                                      .key_file = shown[1],
                                      .authority_file = folder + "/authority.pem"}),
            absl::OkStatus());
  const absl::Status without = try_store(std::stoi(shown[0]), {});
  EXPECT_FALSE(without.ok());
  EXPECT_TRUE(absl::StrContains(without.message(), "certificate")) << without;
  launch.send(SIGTERM);
  launch.events_to_the_end();
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(LaunchSecure, KeysAreRemovedWhenTheLauncherIsKilled) {
  LaunchProcess launch(with_script({"--standalone", "--secure"}, kShowFilesAndWait));
  const std::vector<std::string> shown = absl::StrSplit(launch.events(1).at(0), ' ');
  ASSERT_EQ(shown.size(), 2u);
  launch.send(SIGKILL);
  // The end of the pipe is the end of the reaper, which removes the folder.
  launch.events_to_the_end();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(shown[1]).parent_path()));
}

// Two nodes with certificates that an authority of the user has signed.
class CertifiedNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<security::JobAuthority> authority =
        security::JobAuthority::create("job", absl::Hours(1));
    ASSERT_TRUE(authority.ok()) << authority.status();
    write("authority.pem", authority->certificate());
    for (const char* name : {"launcher", "default0", "default1"}) {
      const absl::StatusOr<security::JobAuthority::Identity> identity = authority->issue(name);
      ASSERT_TRUE(identity.ok()) << identity.status();
      write(absl::StrCat(name, ".pem"), identity->certificate);
      write(absl::StrCat(name, ".key"), identity->key.reveal());
    }
  }

  static std::string path(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }
  static void write(const std::string& name, absl::string_view text) {
    std::filesystem::remove(path(name));
    std::ofstream(path(name)) << text;
    ASSERT_EQ(chmod(path(name).c_str(), 0600), 0);
  }
  std::unique_ptr<LaunchProcess> node(int rank) {
    return std::make_unique<LaunchProcess>(std::vector<std::string>{
        "--nnodes=2", absl::StrCat("--node_rank=", rank), absl::StrCat("--master_port=", port_),
        "--certificate_file=" + path("launcher.pem"), "--key_file=" + path("launcher.key"),
        "--authority_file=" + path("authority.pem"),
        "--worker_certificate_file=" + path("{role}{role_rank}.pem"),
        "--worker_key_file=" + path("{role}{role_rank}.key"), "tests/launch/security/calling_worker", "tcp"});
  }

  const int port_ = free_port();
};

TEST_F(CertifiedNodes, CallEachOtherByTls) {
  auto first = node(0), second = node(1);
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->out() + second->out(), "40\n41\n");
}

}  // namespace
}  // namespace gradwire::tests
