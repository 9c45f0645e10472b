#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/tools/launch/options/option_table.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {
namespace {

using Args = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;
using Kind = LaunchSecurity::Kind;

absl::StatusOr<LaunchOptions> parse_arguments(Args args, const Environment& environment = {}) {
  args.push_back("program");
  return parse_launch_options(args, {.variable = [&](const std::string& name) -> std::optional<std::string> {
                                       const auto found = environment.find(name);
                                       if (found == environment.end()) return std::nullopt;
                                       return found->second;
                                     },
                                     .cores = 6,
                                     .visible_gpus = [] { return 0; }});
}

LaunchSecurity good(const Args& args, const Environment& environment = {}) {
  absl::StatusOr<LaunchOptions> options = parse_arguments(args, environment);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? options->security : LaunchSecurity();
}

void expect_refused(const Args& args, const Environment& environment, const std::vector<std::string>& parts) {
  const absl::Status status = parse_arguments(args, environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ::testing::PrintToString(args);
  for (const std::string& part : parts) EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "\n")) << status;
}

TEST(LaunchSecurity, JobOnOneNodeGetsANewToken) {
  for (const Args& args : {Args{}, Args{"--standalone"}, Args{"--master_addr=host"},
                           Args{"--rdzv_backend=etcd", "--rdzv_endpoint=e"}}) {
    EXPECT_EQ(good(args).kind, Kind::kNewToken) << ::testing::PrintToString(args);
    // A launcher that is itself a worker does not use the token of its job for another one.
    EXPECT_EQ(good(args, {{"GRADWIRE_TOKEN_FD", "100"}}).kind, Kind::kNewToken);
  }
  EXPECT_EQ(good({}).worker_name, "");
}

TEST(LaunchSecurity, OtherHostsNeedAProof) {
  for (const Args& args :
       {Args{"--nnodes=2", "--master_addr=host-a"}, Args{"--nnodes=1:2", "--rdzv_endpoint=host-a:29400"},
        Args{"--nnodes=2", "--rdzv_endpoint=localhost", "--local_addr=host-a"},
        Args{"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=localhost,host-a", "--rdzv_id=j"}}) {
    expect_refused(args, {}, {"host-a", "--token_file", "--make_token", "--certificate_file", "--insecure"});
    Args more = args;
    more.push_back("--token_file=/t");
    EXPECT_EQ(good(more).kind, Kind::kToken);
    EXPECT_EQ(good(more).token_file, "/t");
    more.back() = "--insecure";
    EXPECT_EQ(good(more).kind, Kind::kInsecure);
    EXPECT_EQ(good(args, {{"GRADWIRE_INSECURE", "1"}}).kind, Kind::kInsecure);
    EXPECT_EQ(good(args, {{"GRADWIRE_TOKEN_FILE", "/t"}}).token_file, "/t");
    EXPECT_EQ(good(args, {{"PET_TOKEN_FILE", "/t"}}).token_file, "/t");
    EXPECT_EQ(good(args, {{"GRADWIRE_TOKEN_FD", "100"}}).kind, Kind::kToken);
  }
}

TEST(LaunchSecurity, NodesOfThisHostNeedNone) {
  for (const Args& args :
       {Args{"--nnodes=2"}, Args{"--nnodes=1:2", "--rdzv_endpoint=127.0.0.1:29400"},
        Args{"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=localhost,[::1]:1", "--rdzv_id=j"}}) {
    EXPECT_EQ(good(args).kind, Kind::kThisHost) << ::testing::PrintToString(args);
  }
}

TEST(LaunchSecurity, CertificatesAreForLauncherAndWorkers) {
  const Args files = {"--nnodes=2", "--master_addr=h", "--certificate_file=/c", "--key_file=/k",
                      "--authority_file=/a"};
  const LaunchSecurity own = good(files);
  EXPECT_EQ(own.kind, Kind::kCertificates);
  EXPECT_EQ(own.certificate_file + own.key_file + own.authority_file, "/c/k/a");
  EXPECT_EQ(own.worker_certificate_file + own.worker_key_file, "");
  Args more = files;
  more.insert(more.end(),
              {"--worker_certificate_file=/c{rank}", "--worker_key_file=/k{rank}", "--worker_name=w{rank}"});
  EXPECT_EQ(good(more).worker_certificate_file, "/c{rank}");
  EXPECT_EQ(good(more).worker_key_file, "/k{rank}");
  EXPECT_EQ(good(more).worker_name, "w{rank}");
  EXPECT_EQ(good({}, {{"GRADWIRE_CERTIFICATE_FILE", "/c"},
                      {"GRADWIRE_KEY_FILE", "/k"},
                      {"GRADWIRE_AUTHORITY_FILE", "/a"}})
                .kind,
            Kind::kCertificates);
}

TEST(LaunchSecurity, SecureNamesTheWorkersAsLaunchInfoDoes) {
  EXPECT_EQ(good({"--secure"}).kind, Kind::kNewCertificates);
  EXPECT_EQ(good({"--secure"}).worker_name, "{role}{role_rank}");
  EXPECT_EQ(good({"--secure", "--worker_name=worker{rank}"}).worker_name, "worker{rank}");
}

TEST(LaunchSecurity, CommandLineStandsAgainstTheEnvironment) {
  const Environment all = {
      {"GRADWIRE_INSECURE", "1"}, {"GRADWIRE_TOKEN_FILE", "/t"}, {"GRADWIRE_CERTIFICATE_FILE", "/c"}};
  EXPECT_EQ(good({"--secure"}, all).kind, Kind::kNewCertificates);
  EXPECT_EQ(good({"--token_file=/u"}, all).token_file, "/u");
  EXPECT_EQ(good({"--insecure"}, all).kind, Kind::kInsecure);
  EXPECT_EQ(good({"--insecure"}, all).token_file, "");
  EXPECT_EQ(good({}, {{"GRADWIRE_INSECURE", "1"}, {"GRADWIRE_TOKEN_FILE", "/t"}}).kind, Kind::kToken);
}

TEST(LaunchSecurity, ContradictionsAreRefused) {
  const Environment none;
  expect_refused({"--secure", "--insecure"}, none, {"--secure", "--insecure"});
  expect_refused({"--token_file=/t", "--insecure"}, none, {"--token_file", "--insecure"});
  expect_refused({"--token_file=/t", "--key_file=/k"}, none, {"--token_file", "--key_file"});
  expect_refused({}, {{"GRADWIRE_TOKEN_FILE", "/t"}, {"GRADWIRE_KEY_FILE", "/k"}},
                 {"--token_file", "--key_file"});
  expect_refused({}, {{"GRADWIRE_INSECURE", "perhaps"}}, {"GRADWIRE_INSECURE", "perhaps"});
  expect_refused({"--certificate_file=/c", "--key_file=/k"}, none, {"--authority_file", "all three"});
  expect_refused({"--worker_key_file=/k"}, none, {"--worker_key_file", "--worker_certificate_file"});
  expect_refused({"--secure", "--worker_certificate_file=/c", "--worker_key_file=/k"}, none,
                 {"--certificate_file"});
  expect_refused({"--secure", "--nnodes=2"}, none, {"--secure", "one node", "--certificate_file"});
  expect_refused({"--worker_name=w{number}"}, none, {"--worker_name", "{number}", "{role_rank}"});
  expect_refused({"--worker_name=w", "--nproc_per_node=2"}, none, {"--worker_name", "\"w\"", "{rank}"});
  expect_refused({"--token_file="}, none, {"--token_file"});
}

TEST(LaunchSecurity, MakeTokenNeedsNoProgram) {
  EXPECT_EQ(parse_launch_options({"--make_token=/t"})->make_token, "/t");
  EXPECT_EQ(parse_arguments({}, {{"PET_MAKE_TOKEN", "/t"}})->make_token, "");
}

}  // namespace
}  // namespace gradwire::tools
