// The page of a job of several agents in this process, over real sockets.
#include "gradwire/tools/inspect/web/page_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/inspect/page/page_client.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::inspect {
namespace {

using rpc::Destination;
using testing::get_data;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PageUrl;
using transport::testing::connect_to;
using transport::testing::http_get;
using transport::testing::parse_answer;
using transport::testing::read_all;
using transport::testing::send_text;
using Json = nlohmann::json;

// The calls of a test wait for its gate.
Promise<void>& gate() {
  static auto* promise = new Promise<void>;
  return *promise;
}
Future<void> wait_at_gate() { return gate().future(); }
GRADWIRE_RPC(wait_at_gate)
int64_t pass_on(const std::string& to) {
  rpc::Agent::current()->rpc_sync<&wait_at_gate>(Destination(to).with_timeout(absl::Seconds(600)));
  return 1;
}
GRADWIRE_RPC(pass_on)
int64_t add_one(int64_t number) { return number + 1; }
GRADWIRE_RPC(add_one)

// A job of three agents, and its page.
class PageServerTest : public ::testing::Test {
 protected:
  PageServerTest()
      : store_(std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true})),
        group_({"ps", "trainer0", "trainer1"}, with_store()) {
    absl::StatusOr<std::unique_ptr<PageServer>> server = PageServer::start(options());
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  rpc::RpcBackendOptions with_store() const {
    rpc::RpcBackendOptions options;
    options.store = store_;
    return options;
  }
  Options options() const {
    Options options;
    options.place.store = absl::StrCat("127.0.0.1:", store_->port());
    options.place.timeout = absl::Seconds(30);
    options.interval = absl::Milliseconds(100);
    options.thresholds.slow_call = absl::ZeroDuration();
    return options;
  }
  std::string address() const { return PageUrl(server_->url()).address; }
  std::string token() const { return PageUrl(server_->url()).token; }
  // Asks until `done` is true for the data.
  Json data_when(const std::function<bool(const Json&)>& done) const {
    Json data;
    EXPECT_TRUE(eventually([&] {
      const auto answer = get_data(address(), token());
      EXPECT_EQ(answer.status, 200);
      data = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(data.is_object()) << answer.body;
      return answer.status != 200 || !data.is_object() || done(data);
    })) << data.dump(1);
    return data;
  }

  const std::shared_ptr<store::TcpStore> store_;
  rpc::testing::Group group_;
  std::unique_ptr<PageServer> server_;
};

TEST_F(PageServerTest, DataShowTheJobAndItsHistory) {
  const Future<int64_t> call = group_[1]->rpc_async<&pass_on>("trainer1", std::string("ps"));
  for (int i = 0; i < 20; ++i) group_[1]->rpc_sync<&add_one>("ps", 1);
  const Json data = data_when([&](const Json& json) {
    // A busy machine may answer a reading too late. The page then says so, and the next reading is complete.
    if (json["report"].is_null() || !absl::StrContains(std::string(json["summary"]), "all answer"))
      return false;
    for (int i = 0; i < 5; ++i) group_[1]->rpc_sync<&add_one>("ps", 1);
    const Json& calls = json["calls"];
    const bool has_chain = std::any_of(calls.begin(), calls.end(), [](const Json& each) {
      return each.size() == 2 && each[1]["stage"] == "RUNNING";
    });
    const Json& samples = json["samples"];
    return has_chain &&
           std::any_of(samples.begin(), samples.end(), [](const Json& each) { return each["calls"] > 0; });
  });
  EXPECT_EQ(data["status"], "");
  EXPECT_EQ(data["protection"], "this host only");
  EXPECT_EQ(data["report"]["workers"].size(), 3u);
  EXPECT_EQ(data["report"]["workers"][0]["name"], "ps");
  EXPECT_THAT(std::string(data["summary"]), HasSubstr("3 workers, all answer"));
  // Times are those of the wall clock, not of a clock that begins with the host.
  EXPECT_GT(data["samples"][0]["time"], 1.7e9);
  EXPECT_THAT(std::string(data["report"]["time"]), HasSubstr("T"));
  EXPECT_THAT(std::string(data["report"]["time"]), Not(HasSubstr("1970")));
  ASSERT_EQ(data["lives"].size(), 3u);
  EXPECT_TRUE(data["lives"][0]["ended"].is_null());
  EXPECT_EQ(data["calls"][0][0]["caller"], "trainer0");
  EXPECT_THAT(std::string(data["calls"][0][0]["callee"]), HasSubstr("pass_on"));
  EXPECT_EQ(data["calls"][0][1]["worker"], "ps");
  EXPECT_EQ(data["report"]["findings"][0]["kind"], "slow_call");
  gate().set_value();
  call.wait();
}

TEST_F(PageServerTest, PageAndDataNeedTheToken) {
  const auto page = http_get(address(), absl::StrCat("/?token=", token()));
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("<title>Gradwire job</title>"));
  EXPECT_THAT(page.body, Not(HasSubstr(token())));
  EXPECT_EQ(token().size(), 48u);
  std::string wrong = token();
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  for (const std::string& each : {wrong, token().substr(1), token() + "0", std::string()}) {
    const auto refused = http_get(address(), absl::StrCat("/?token=", each));
    EXPECT_EQ(refused.status, 403) << each;
    EXPECT_THAT(refused.body, Not(HasSubstr("<")));
    EXPECT_EQ(get_data(address(), each).status, 403) << each;
  }
  EXPECT_EQ(http_get(address(), "/").status, 403);
  // The data do not take the token of the address, which other pages could use in a link.
  EXPECT_EQ(http_get(address(), absl::StrCat("/data?token=", token())).status, 403);
  EXPECT_EQ(http_get(address(), absl::StrCat("/other?token=", token())).status, 404);
  EXPECT_EQ(http_get(address(), absl::StrCat("/?token=", token()), "127.0.0.1", "POST").status, 405);
  // Another server has another one.
  const auto second = PageServer::start(options());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(PageUrl((*second)->url()).token, token());
}

TEST_F(PageServerTest, AnswersForbidEverythingElseToTheBrowser) {
  for (const auto& answer : {http_get(address(), absl::StrCat("/?token=", token())), http_get(address(), "/"),
                             get_data(address(), token())}) {
    for (const char* header :
         {"Content-Security-Policy: default-src 'none'; script-src 'sha256-", "frame-ancestors 'none'",
          "Referrer-Policy: no-referrer", "X-Frame-Options: DENY", "X-Content-Type-Options: nosniff",
          "Cache-Control: no-store", "Cross-Origin-Resource-Policy: same-origin"}) {
      EXPECT_THAT(answer.head, HasSubstr(header));
    }
    EXPECT_THAT(answer.head, Not(HasSubstr("Set-Cookie")));
    EXPECT_THAT(answer.head, Not(HasSubstr("Access-Control-Allow")));
  }
}

TEST_F(PageServerTest, ForeignHostsAreRefusedWithTheRightToken) {
  const std::string path = absl::StrCat("/?token=", token());
  for (const char* host : {"evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""}) {
    EXPECT_EQ(http_get(address(), path, host).status, 403) << host;
    EXPECT_EQ(get_data(address(), token(), host).status, 403) << host;
  }
  EXPECT_EQ(http_get(address(), path, "localhost:1").status, 200);
}

TEST_F(PageServerTest, LongRequestsAreRefused) {
  const Descriptor connection = connect_to(address());
  send_text(connection,
            absl::StrCat("GET /?token=", std::string(64 << 10, 'a'), " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const int status = parse_answer(read_all(connection)).status;
  EXPECT_TRUE(status == 0 || status == 413 || status == 414 || status == 431) << status;
  EXPECT_EQ(get_data(address(), token()).status, 200);
}

TEST_F(PageServerTest, WorkersThatLeaveStayOnTheTimeLine) {
  data_when([](const Json& json) { return json.contains("lives") && json["lives"].size() == 3; });
  group_.kill(2);
  const Json data = data_when([](const Json& json) { return !json["lives"][2]["ended"].is_null(); });
  EXPECT_EQ(data["lives"][2]["name"], "trainer1");
  EXPECT_TRUE(data["lives"][0]["ended"].is_null());
}

// As for the launcher, whose job has its store at another address in each round.
TEST_F(PageServerTest, TheStoreMayMove) {
  Options later = options();
  later.place.store = "";
  auto server = PageServer::start(later);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  data_when(
      [](const Json& json) { return json["status"] == "the workers of the job have not been started"; });
  server_->set_store(options().place.store);
  data_when(
      [](const Json& json) { return !json["report"].is_null() && json["report"]["workers"].size() == 3; });
  const auto other =
      std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true});
  rpc::RpcBackendOptions of_other;
  of_other.store = other;
  rpc::testing::Group next({"next"}, of_other);
  server_->set_store(absl::StrCat("127.0.0.1:", other->port()));
  const Json data = data_when([](const Json& json) { return json["report"]["workers"].size() == 1; });
  EXPECT_EQ(data["report"]["workers"][0]["name"], "next");
  // The workers of the round before are on the time line.
  EXPECT_EQ(data["lives"].size(), 4u);
  // A worker that is observed has an entry for its observer.
  server_.reset();
}

TEST(PageServer, JobThatCannotBeReadIsExplained) {
  Options options;
  options.place.store = "file:///nonexistent/job";
  options.interval = absl::Milliseconds(100);
  const auto server = PageServer::start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const PageUrl url((*server)->url());
  EXPECT_TRUE(eventually([&] {
    return get_data(url.address, url.token).body.find("/nonexistent/job does not exist") != std::string::npos;
  }));
}

TEST(PageServer, AddressesOfOtherHostsNeedConsent) {
  Options options;
  options.place.store = "file:///nonexistent/job";
  options.listen = "0.0.0.0:0";
  const absl::Status refused = PageServer::start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure"));
  options.insecure_page = true;
  EXPECT_TRUE(PageServer::start(options).ok());
  for (const char* address : {"unix:/tmp/page", "", "80"}) {
    options.listen = address;
    EXPECT_EQ(PageServer::start(options).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace gradwire::inspect
