// The page that a launcher serves about its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/tests/inspect/page/page_client.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::tests {
namespace {

using inspect::testing::get_data;
using inspect::testing::PageUrl;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// The address that the launcher has printed; "" if it has printed none.
std::string url_in(const std::string& text) {
  constexpr char kBefore[] = "serving the page of the job at ";
  const std::size_t at = text.find(kBefore);
  if (at == std::string::npos) return "";
  const std::string rest = text.substr(at + sizeof(kBefore) - 1);
  return rest.substr(0, rest.find('\n'));
}

// Waits until the page shows `count` workers that answer. Returns its last data.
Json data_with_workers(const PageUrl& url, std::size_t count) {
  Json data;
  EXPECT_TRUE(eventually([&] {
    data = Json::parse(get_data(url.address, url.token).body, nullptr, /*allow_exceptions=*/false);
    if (!data.is_object() || data["report"].is_null()) return false;
    const Json& workers = data["report"]["workers"];
    return count ==
           static_cast<std::size_t>(std::count_if(workers.begin(), workers.end(),
                                                  [](const Json& each) { return each["answered"] == true; }));
  })) << data.dump(1);
  return data;
}

class LaunchPage : public ::testing::TestWithParam<std::string> {};

TEST_P(LaunchPage, ShowsTheWorkersWithTheCredentialsOfTheJob) {
  LaunchProcess launch({"--standalone", GetParam(), "--nproc_per_node=2", "--page=127.0.0.1:0",
                        "tests/inspect/problem_worker", "none"});
  launch.events(1);
  const std::string printed = url_in(launch.err());
  ASSERT_NE(printed, "") << launch.err();
  const PageUrl url(printed);
  EXPECT_THAT(url.address, ::testing::StartsWith("127.0.0.1:"));
  EXPECT_THAT(transport::testing::http_get(url.address, "/?token=" + url.token).body,
              HasSubstr("<title>Gradwire job</title>"));
  const Json data = data_with_workers(url, 2);
  EXPECT_EQ(data["status"], "");
  EXPECT_EQ(get_data(url.address, "wrong").status, 403);
  EXPECT_EQ(transport::testing::http_get(url.address, "/").status, 403);
  // It ends with the job.
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
  EXPECT_EQ(get_data(url.address, url.token).status, 0);
}

INSTANTIATE_TEST_SUITE_P(Credentials, LaunchPage,
                         ::testing::Values("--rdzv_id=page", "--secure", "--insecure"));

TEST(LaunchPageAddress, IsCheckedBeforeAnyWorkerStarts) {
  LaunchProcess other({"--standalone", "--page=0.0.0.0:0", "sh", "-c", "echo started >&9"});
  EXPECT_EQ(other.wait(), 1);
  EXPECT_THAT(other.err(), AllOf(HasSubstr("--page"), HasSubstr("--insecure")));
  EXPECT_EQ(other.events_to_the_end(), "");
  LaunchProcess malformed({"--standalone", "--page=80", "sh", "-c", "echo started >&9"});
  EXPECT_EQ(malformed.wait(), 2);
  EXPECT_THAT(malformed.err(), HasSubstr("malformed address"));
  EXPECT_EQ(malformed.events_to_the_end(), "");
}

TEST(LaunchPageAddress, IsNotPrintedWithoutTheOption) {
  LaunchProcess launch({"--standalone", "true"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_THAT(launch.err(), Not(HasSubstr("the page")));
}

}  // namespace
}  // namespace gradwire::tests
