#include "gradwire/tools/launch/metrics/job_metrics.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gradwire/transport/http/http_server.h"
#include "gradwire/transport/http/testing/http_client.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

using metrics::testing::TextFamilies;

// A worker as the launcher sees it.
std::unique_ptr<transport::HttpServer> worker(const std::string& address, const std::string& text) {
  auto server =
      transport::HttpServer::start({.address = address}, {{"/metrics", {.make = [text] { return text; }}}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Adds a worker, and returns its address.
std::string add_worker(JobMetrics& job, int local_rank, int rank) {
  JobMetrics::Variables variables;
  EXPECT_TRUE(job.add_worker(local_rank, rank, variables).ok());
  EXPECT_EQ(variables.at(0).first, "GRADWIRE_METRICS_ADDRESS");
  return variables.at(0).second;
}

std::string links(const std::string& name, int64_t count) {
  metrics::Registry registry;
  registry.gauge(metrics::Metric::kLinks).set(count);
  metrics::Samples samples({{"worker", name}});
  registry.collect(samples);
  return samples.text();
}

TextFamilies parsed(const std::string& text) {
  auto families = metrics::testing::parse_strictly(text);
  EXPECT_TRUE(families.ok()) << families.status() << "\n" << text;
  return families.ok() ? *families : TextFamilies();
}

// A socket that accepts connections in its backlog, and never answers.
Descriptor silent(const std::string& path) {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(socket.get(), 4), 0);
  return socket;
}

TEST(JobMetrics, ServesAllWorkersWithTheirRanks) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(job->serve().ok());
  job->begin_round(0, 0);
  const auto a = worker(add_worker(*job, 0, 4), links("a", 1));
  const auto b = worker(add_worker(*job, 1, 5), links("b", 2));
  // A process may have several agents.
  const auto c = worker(absl::StrCat("unix:", job->folder(), "/0/1/"), links("c", 3));
  const auto answer = transport::testing::http_get(job->address(), "/metrics");
  EXPECT_EQ(answer.status, 200);
  const TextFamilies families = parsed(answer.body);
  const auto& found = families.at("gradwire_rpc_links");
  EXPECT_EQ(found.value({{"rank", "4"}, {"worker", "a"}}), 1);
  EXPECT_EQ(found.value({{"rank", "5"}, {"worker", "b"}}), 2);
  EXPECT_EQ(found.value({{"rank", "5"}, {"worker", "c"}}), 3);
  EXPECT_EQ(families.at("gradwire_launch_workers").value({}), 2);
  EXPECT_EQ(families.at("gradwire_launch_restarts_total").value({}), 0);
  EXPECT_EQ(families.at("gradwire_launch_scrape_failures_total").value({}), 0);
}

TEST(JobMetrics, RoundsReplaceTheirWorkers) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok()) << job.status();
  job->begin_round(0, 0);
  {
    const auto a = worker(add_worker(*job, 0, 0), links("a", 1));
    EXPECT_EQ(parsed(job->text()).count("gradwire_rpc_links"), 1u);
  }
  job->end_round();
  EXPECT_EQ(parsed(job->text()).count("gradwire_rpc_links"), 0u);
  EXPECT_EQ(parsed(job->text()).at("gradwire_launch_workers").value({}), 0);
  job->begin_round(1, 1);
  // No agent yet: nothing to ask, and no failure.
  add_worker(*job, 0, 0);
  const TextFamilies families = parsed(job->text());
  EXPECT_EQ(families.at("gradwire_launch_restarts_total").value({}), 1);
  EXPECT_EQ(families.at("gradwire_launch_rounds_total").value({}), 2);
  EXPECT_EQ(families.at("gradwire_launch_workers").value({}), 1);
  EXPECT_EQ(families.at("gradwire_launch_scrape_failures_total").value({}), 0);
}

TEST(JobMetrics, WorkerThatDoesNotAnswerDoesNotHideTheOthers) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0", .limit = absl::Milliseconds(300)});
  ASSERT_TRUE(job.ok()) << job.status();
  job->begin_round(0, 0);
  const auto a = worker(add_worker(*job, 0, 0), links("a", 1));
  const std::string address = add_worker(*job, 1, 1);
  const Descriptor stuck = silent(absl::StrCat(absl::StripPrefix(address, "unix:"), "stuck"));
  const TextFamilies families = parsed(job->text());
  EXPECT_EQ(families.at("gradwire_rpc_links").value({{"rank", "0"}}), 1);
  EXPECT_EQ(families.at("gradwire_launch_scrape_failures_total").value({}), 1);
}

// A process that is killed leaves the file of its socket.
TEST(JobMetrics, WorkerThatHasEndedIsNotAFailure) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok()) << job.status();
  job->begin_round(0, 0);
  const std::string path = absl::StrCat(absl::StripPrefix(add_worker(*job, 0, 0), "unix:"), "killed");
  silent(path).reset();
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(parsed(job->text()).at("gradwire_launch_scrape_failures_total").value({}), 0);
}

TEST(JobMetrics, MalformedAnswersDoNotSpoilTheText) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok()) << job.status();
  job->begin_round(0, 0);
  const auto a = worker(add_worker(*job, 0, 0), "gradwire_rpc_links{ 1\ngradwire_rpc_links 7\n\xff\n{}\n");
  EXPECT_EQ(parsed(job->text()).at("gradwire_rpc_links").value({{"rank", "0"}}), 7);
}

TEST(JobMetrics, FolderIsPrivateAndIsRemoved) {
  std::string folder;
  {
    auto job = JobMetrics::create({.address = "127.0.0.1:0"});
    ASSERT_TRUE(job.ok()) << job.status();
    folder = job->folder();
    struct stat info = {};
    ASSERT_EQ(stat(folder.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    job->begin_round(0, 0);
    add_worker(*job, 0, 0);
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  auto none = JobMetrics::create({});
  EXPECT_EQ(none->folder(), "");
  JobMetrics::Variables variables;
  EXPECT_TRUE(none->serve().ok());
  EXPECT_TRUE(none->add_worker(0, 0, variables).ok());
  EXPECT_TRUE(variables.empty());
}

TEST(JobMetrics, OtherHostsNeedConsent) {
  auto job = JobMetrics::create({.address = "0.0.0.0:0"});
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->serve().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Scrape, ErrorsSayWhatHappened) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok());
  const std::string folder = job->folder();
  const Descriptor stuck = silent(folder + "/stuck");
  const auto large = worker(absl::StrCat("unix:", folder, "/large"), std::string(1 << 20, 'x'));
  const auto good = worker(absl::StrCat("unix:", folder, "/good"), "x 1\n");
  const auto other = transport::HttpServer::start({.address = absl::StrCat("unix:", folder, "/other")}, {});
  ASSERT_TRUE(other.ok());
  const auto answers = scrape({folder + "/stuck", folder + "/large", folder + "/good", folder + "/missing",
                               folder + "/other", std::string(200, 'x')},
                              absl::Milliseconds(500), 100'000);
  ASSERT_EQ(answers.size(), 6u);
  EXPECT_EQ(answers[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answers[1].status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*answers[2], "x 1\n");
  EXPECT_EQ(answers[3].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answers[4].status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(answers[5].status().code(), absl::StatusCode::kUnavailable);
}

// Connections that the worker has not accepted remain in its queue, which has room for five here.
TEST(Scrape, StuckWorkerIsAFailureAlsoWhenItsQueueIsFull) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok());
  const std::string path = job->folder() + "/stuck";
  const Descriptor stuck = silent(path);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(scrape({path}, absl::Milliseconds(1)).at(0).status().code(),
              absl::StatusCode::kDeadlineExceeded);
}

TEST(Scrape, AnswerOfAWorkerThatDiedMeanwhileIsNotAPage) {
  auto job = JobMetrics::create({.address = "127.0.0.1:0"});
  ASSERT_TRUE(job.ok());
  const std::string path = job->folder() + "/dying";
  const Descriptor listening = silent(path);
  // The length of the whole answer begins with that of the part.
  const std::string part = "HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\nx 1";
  std::thread dying([&] {
    const Descriptor connection(accept(listening.get(), nullptr, nullptr));
    char request[256];
    EXPECT_GT(recv(connection.get(), request, sizeof(request), 0), 0);
    EXPECT_EQ(send(connection.get(), part.data(), part.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(part.size()));
  });
  EXPECT_EQ(scrape({path}, absl::Minutes(1)).at(0).status().code(), absl::StatusCode::kInternal);
  dying.join();
}

}  // namespace
}  // namespace gradwire::tools
