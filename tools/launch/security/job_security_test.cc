#include "gradwire/tools/launch/security/job_security.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/security_options.h"

namespace gradwire::tools {
namespace {

using Kind = LaunchSecurity::Kind;

const WorkerPlace kPlace = {.rank = 2, .local_rank = 1, .role = "trainer", .role_rank = 1};

JobSecurity prepare(const LaunchSecurity& options) {
  absl::StatusOr<JobSecurity> made = JobSecurity::prepare(options, "job");
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::map<std::string, std::string> variables(const JobSecurity& security) {
  const auto list = security.worker_variables(kPlace);
  EXPECT_TRUE(list.ok()) << list.status();
  return {list->begin(), list->end()};
}

std::string content(const std::string& descriptor) {
  char bytes[4096];
  const ssize_t size = pread(std::stoi(descriptor), bytes, sizeof(bytes), 0);
  return std::string(bytes, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

TEST(JobSecurity, NewTokenIsInADescriptorThatIsInherited) {
  const JobSecurity one = prepare({.kind = Kind::kNewToken}), other = prepare({.kind = Kind::kNewToken});
  const std::map<std::string, std::string> set = variables(one);
  ASSERT_EQ(set.size(), 1u);
  const int descriptor = std::stoi(set.at("GRADWIRE_TOKEN_FD"));
  EXPECT_EQ(fcntl(descriptor, F_GETFD), 0);
  EXPECT_GE(descriptor, 100);
  EXPECT_TRUE(SecretOption(content(set.at("GRADWIRE_TOKEN_FD"))) == one.stores().token);
  EXPECT_GE(one.stores().token.secret().size(), 32u);
  EXPECT_FALSE(one.stores().token == other.stores().token);
  // Nobody can change it for the other workers.
  EXPECT_EQ(pwrite(descriptor, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(descriptor, 0), -1);
}

TEST(JobSecurity, TokenOfAFileIsHandedOnWithoutTheFile) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/token");
  const std::string token(64, 'a');
  std::ofstream(path) << token << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  setenv("GRADWIRE_TOKEN_FILE", "/other", 1);
  setenv("GRADWIRE_INSECURE", "1", 1);
  const JobSecurity security = prepare({.kind = Kind::kToken, .token_file = path});
  EXPECT_TRUE(security.stores().token == token);
  EXPECT_EQ(content(variables(security).at("GRADWIRE_TOKEN_FD")), token);
  EXPECT_EQ(variables(security).size(), 1u);
  EXPECT_EQ(std::getenv("GRADWIRE_TOKEN_FILE"), nullptr);
  EXPECT_EQ(std::getenv("GRADWIRE_INSECURE"), nullptr);
}

TEST(JobSecurity, TokenFileThatOthersCanReadIsRefused) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/open_token");
  std::ofstream(path) << std::string(64, 'a') << "\n";
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  const absl::Status status =
      JobSecurity::prepare({.kind = Kind::kToken, .token_file = path}, "job").status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
  EXPECT_FALSE(JobSecurity::prepare({.kind = Kind::kToken, .token_file = "/no/such/file"}, "job").ok());
}

TEST(JobSecurity, NewCertificatesAreNamedAfterTheWorkers) {
  std::string folder;
  {
    const JobSecurity security =
        prepare({.kind = Kind::kNewCertificates, .worker_name = "{role}{role_rank}"});
    folder = security.folder();
    const std::map<std::string, std::string> set = variables(security);
    EXPECT_EQ(set.at("GRADWIRE_WORKER_NAME"), "trainer1");
    EXPECT_EQ(set.at("GRADWIRE_CERTIFICATE_FILE"), absl::StrCat(folder, "/trainer1.certificate.pem"));
    EXPECT_EQ(set.at("GRADWIRE_KEY_FILE"), absl::StrCat(folder, "/trainer1.key.pem"));
    EXPECT_EQ(set.at("GRADWIRE_AUTHORITY_FILE"), absl::StrCat(folder, "/authority.pem"));
    EXPECT_EQ(set.at("GRADWIRE_JOB"), "job");
    EXPECT_EQ(set.count("GRADWIRE_TOKEN_FD"), 0u);
    EXPECT_NE(security.stores().certificate_file, set.at("GRADWIRE_CERTIFICATE_FILE"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(JobSecurity, WorkersGetTheLaunchersFilesOrTheirOwn) {
  const JobSecurity maker = prepare({.kind = Kind::kNewCertificates, .worker_name = "w"});
  const SecurityOptions& files = maker.stores();
  LaunchSecurity given = {.kind = Kind::kCertificates,
                          .certificate_file = files.certificate_file,
                          .key_file = files.key_file,
                          .authority_file = files.authority_file};
  EXPECT_EQ(variables(prepare(given)).at("GRADWIRE_KEY_FILE"), files.key_file);
  given.worker_certificate_file = "/c/{rank}";
  given.worker_key_file = "/k/{rank}";
  const std::map<std::string, std::string> set = variables(prepare(given));
  EXPECT_EQ(set.at("GRADWIRE_CERTIFICATE_FILE"), "/c/2");
  EXPECT_EQ(set.at("GRADWIRE_KEY_FILE"), "/k/2");
  EXPECT_EQ(set.at("GRADWIRE_AUTHORITY_FILE"), files.authority_file);
  // The workers belong to the job that the launcher's own certificate names.
  EXPECT_EQ(set.at("GRADWIRE_JOB"), "job");
  setenv("GRADWIRE_JOB", "another", 1);
  const absl::Status other_job = JobSecurity::prepare(given, "job").status();
  EXPECT_TRUE(absl::StrContains(other_job.message(), "belongs to the job \"another\"")) << other_job;
  unsetenv("GRADWIRE_JOB");
  given.key_file = "/no/such/key";
  EXPECT_FALSE(JobSecurity::prepare(given, "job").ok());
}

TEST(JobSecurity, OthersGetNoProof) {
  const JobSecurity insecure = prepare({.kind = Kind::kInsecure});
  EXPECT_TRUE(insecure.stores().insecure);
  EXPECT_EQ(variables(insecure), (std::map<std::string, std::string>{{"GRADWIRE_INSECURE", "1"}}));
  const JobSecurity this_host = prepare({.kind = Kind::kThisHost, .worker_name = "w{rank}"});
  EXPECT_FALSE(this_host.stores().insecure);
  EXPECT_EQ(variables(this_host), (std::map<std::string, std::string>{{"GRADWIRE_WORKER_NAME", "w2"}}));
}

// In absolute paths: an observer runs in another folder.
TEST(JobSecurity, ObserverGetsWhatProvesItself) {
  const JobSecurity own = prepare({.kind = Kind::kNewToken});
  EXPECT_TRUE(own.observer()->security.token == own.stores().token);
  EXPECT_EQ(own.observer()->name, "inspect");

  const std::string relative = "observed_token";
  std::ofstream(relative) << std::string(64, 'a') << "\n";
  std::filesystem::permissions(relative, std::filesystem::perms::owner_read);
  const JobSecurity given = prepare({.kind = Kind::kToken, .token_file = relative});
  EXPECT_EQ(given.observer()->security.token_file, std::filesystem::absolute(relative).string());
  EXPECT_TRUE(given.observer()->security.token.empty());

  const JobSecurity secure = prepare({.kind = Kind::kNewCertificates});
  const JobSecurity::Observer observer = *secure.observer();
  EXPECT_EQ(observer.name, "inspect");
  EXPECT_TRUE(std::filesystem::exists(observer.security.key_file));
  EXPECT_NE(observer.security.key_file, secure.stores().key_file);

  LaunchSecurity files = {.kind = Kind::kCertificates,
                          .certificate_file = secure.stores().certificate_file,
                          .key_file = secure.stores().key_file,
                          .authority_file = secure.stores().authority_file};
  const JobSecurity of_files = prepare(files);
  EXPECT_EQ(of_files.observer()->name, "launcher");
  EXPECT_EQ(of_files.observer()->security.key_file, files.key_file);

  EXPECT_TRUE(prepare({.kind = Kind::kInsecure}).observer()->security.insecure);
  EXPECT_FALSE(prepare({.kind = Kind::kThisHost}).observer()->security.insecure);
}

}  // namespace
}  // namespace gradwire::tools
