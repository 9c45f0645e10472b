// The page in a browser, as a user sees it. Its data are those of a job that the test makes up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/security/secret.h"
#include "gradwire/tests/inspect/page/browser.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"
#include "gradwire/tools/inspect/web/critical_path.h"
#include "gradwire/tools/inspect/web/history.h"
#include "gradwire/tools/inspect/web/page_json.h"
#include "gradwire/tools/inspect/web/page_server.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using testing::document_of;
using testing::find_browser;
using ::testing::HasSubstr;
using ::testing::Not;
using Stage = proto::CallSummary;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr int kMilliseconds = 3'000;
// It would end the title, and set a mark if the browser took it for HTML.
constexpr char kHostile[] =
    "<img src=x onerror=document.body.id='owned'></script><script>document.body.id='owned'</script>";

absl::Time at(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(1'700'000'000 + seconds); }

// The state that a page shows, and its server.
class Served {
 public:
  // Adds a reading of the job.
  void add(const JobView& job) {
    const JobView before = report_.job;
    report_.job = job;
    report_.rates = compare(before, job);
    report_.findings = analyze(job, {});
    history_.add(report_);
    state_.report = &report_;
    state_.history = &history_;
  }
  PageState& state() { return state_; }
  // The server, which reads the state on its own thread, runs only meanwhile.
  std::string document() const {
    const absl::StatusOr<std::unique_ptr<transport::HttpServer>> server =
        start_page_http("127.0.0.1:0", false, security::Secret(kToken), [this] { return page_json(state_); });
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      return "";
    }
    return document_of(absl::StrCat("http://", (*server)->address(), "/?token=", kToken), kMilliseconds);
  }

 private:
  Report report_;
  History history_;
  PageState state_;
};

JobBuilder job(int64_t seconds, const std::vector<std::string>& names) {
  JobBuilder builder(names);
  builder.job.group = "round_1/rpc";
  builder.job.time = at(seconds);
  for (WorkerView& worker : builder.job.workers) {
    worker.state.set_uptime_us(60'000'000);
    worker.state.set_read_at_us(seconds * 1'000'000);
    worker.state.set_host("host-7");
    worker.state.set_pid(4'000 + worker.record.id());
  }
  return builder;
}

void link(JobBuilder& builder, const std::string& from, const std::string& to, const std::string& transport,
          uint64_t bytes) {
  proto::LinkState& link = *builder.peer(from, to).add_links();
  link.set_number(1);
  link.set_transport(transport);
  link.set_in_use(true);
  link.set_bytes_sent(bytes);
}

void bucket(JobBuilder& builder, const std::string& worker, int bucket, int64_t calls) {
  proto::NamedNumber& number = *builder.worker(worker).state.add_statistics();
  number.set_name(absl::StrCat("call_bucket_", bucket));
  number.set_value(calls);
}

// The element with this id, up to the end of its kind of element.
std::string element(const std::string& document, const std::string& id, const std::string& tag) {
  const std::size_t at = document.find(absl::StrCat(" id=\"", id, "\""));
  EXPECT_NE(at, std::string::npos) << id;
  if (at == std::string::npos) return "";
  return document.substr(at, document.find(absl::StrCat("</", tag, ">"), at) - at);
}

class PageBrowserTest : public ::testing::Test {
 protected:
  void SetUp() override { GRADWIRE_NEEDS("chromium", find_browser()); }
};

TEST_F(PageBrowserTest, ShowsWorkersAndTheirTraffic) {
  Served served;
  for (const int64_t second : {0, 1}) {
    JobBuilder builder = job(second, {"a", "b", "c"});
    link(builder, "a", "b", "shm", static_cast<uint64_t>(second) * (5 << 20));
    link(builder, "b", "c", "tcp", 0);
    bucket(builder, "a", 10, 5 + 100 * second);
    served.add(builder.job);
  }
  served.state().protection = "token";
  const std::string document = served.document();
  EXPECT_THAT(element(document, "summary", "p"), HasSubstr("3 workers, all answer; no problem found"));
  EXPECT_THAT(element(document, "group", "span"), HasSubstr("round_1/rpc"));
  EXPECT_THAT(document, HasSubstr("<title>round_1/rpc \xe2\x80\x93 Gradwire</title>"));
  const std::string graph = element(document, "graph", "svg");
  for (const char* worker : {"a", "b", "c"})
    EXPECT_THAT(graph, HasSubstr(absl::StrCat("data-worker=\"", worker, "\" class=\"node member\"")));
  EXPECT_THAT(graph, AllOf(HasSubstr("rank 0, host-7"), HasSubstr("data-worker=\"c\"")));
  // Traffic moves only where there is some, in its direction, and with the colour of the transport.
  EXPECT_THAT(graph, AllOf(HasSubstr("edge shm busy"), HasSubstr("flow shm s3"), HasSubstr("flow shm s0")));
  EXPECT_THAT(
      graph, AllOf(HasSubstr("edge secure "), HasSubstr("flow secure s0"), Not(HasSubstr("flow secure s1"))));
  EXPECT_THAT(graph, HasSubstr("shm 5.0 MiB/s"));
  EXPECT_THAT(element(document, "secure-key", "span"), HasSubstr("tcp, secured by a token"));
  EXPECT_THAT(element(document, "latency-now", "span"), HasSubstr("99 % at most 1.0 ms"));
  EXPECT_THAT(element(document, "latency", "svg"), HasSubstr("<path class=\"line p99\" d=\"M"));
  EXPECT_THAT(element(document, "workers", "table"), AllOf(HasSubstr("host-7"), HasSubstr("4002")));
  EXPECT_THAT(element(document, "findings", "ul"), HasSubstr("No problem was found."));
}

TEST_F(PageBrowserTest, ShowsSlowCallsWithTheirChainsAndFindings) {
  Served served;
  JobBuilder builder = job(0, {"a", "b", "c"});
  const BuiltCall outer = builder.call("a", "b", "demo::outer", absl::Seconds(9), Stage::NESTED);
  builder.call("b", "c", "demo::inner", absl::Seconds(8), Stage::RUNNING, outer);
  served.add(builder.job);
  const std::string document = served.document();
  const std::string calls = element(document, "calls", "table");
  EXPECT_THAT(calls,
              HasSubstr("<td class=\"name\" title=\"demo::outer\">demo::outer</td><td class=\"\">b</td>"
                        "<td class=\"\">a</td><td class=\"\">nested</td>"));
  EXPECT_THAT(calls,
              HasSubstr("<td class=\"name d1\" title=\"demo::inner\">demo::inner</td><td class=\"\">c</td>"
                        "<td class=\"\">b</td><td class=\"\">running</td><td class=\"number\">8.0 s</td>"));
  const std::string findings = element(document, "findings", "ul");
  EXPECT_THAT(findings,
              AllOf(HasSubstr("data-kind=\"slow_call\""), HasSubstr("slow call: \"demo::inner\" at \"c\"")));
  EXPECT_THAT(document, HasSubstr("<title>(1) "));
}

TEST_F(PageBrowserTest, ShowsTheLateRankOfACollective) {
  Served served;
  JobBuilder builder = job(0, {"a", "b"});
  for (const char* name : {"a", "b"}) {
    proto::ProcessGroupState& group = *builder.worker(name).state.add_groups();
    group.set_title(absl::StrCat("group \"world\", rank ", name[0] - 'a', " of 2"));
    proto::CollectiveState& last = *group.mutable_last();
    last.set_operation("all_reduce");
    last.set_sequence(name[0] == 'a' ? 42 : 41);
    last.set_state(name[0] == 'a' ? proto::CollectiveState::RUNNING : proto::CollectiveState::DONE);
    last.set_age_us(5'000'000);
    if (name[0] == 'a') *group.mutable_oldest() = last;
  }
  served.add(builder.job);
  const std::string groups = element(served.document(), "groups", "table");
  EXPECT_THAT(
      groups,
      HasSubstr("<tr class=\"bad\"><td class=\"name\" title=\"world\">world</td><td class=\"number\">1</td>"
                "<td class=\"\">b</td><td class=\"\">all_reduce</td><td class=\"number\">41</td>"
                "<td class=\"\">late</td>"));
  EXPECT_THAT(groups, HasSubstr("<td class=\"number\">42</td><td class=\"\">running</td>"));
}

TEST_F(PageBrowserTest, ShowsTheCriticalPathAndRestarts) {
  Served served;
  served.add(job(0, {"a", "b"}).job);
  JobBuilder second = job(100, {"a", "b"});
  second.job.group = "round_2/rpc";
  for (WorkerView& worker : second.job.workers)
    worker.record.set_incarnation(worker.record.incarnation() + 1'000);
  second.worker("b").standing = WorkerView::Standing::kDead;
  served.add(second.job);
  served.state().pass = PassPath{.root = "a",
                                 .number = 12,
                                 .total = 4'000'000,
                                 .parts = {{"a", 0, 4'000'000, "OK"}, {"b", 1'000'000, 4'000'000, "OK"}},
                                 .path = {{"a", 0, 1'000'000, ""}, {"b", 1'000'000, 4'000'000, ""}},
                                 .error = 2'000};
  const std::string document = served.document();
  EXPECT_THAT(
      element(document, "pass-text", "p"),
      HasSubstr(
          "Pass a/12 took 4.0 ms. Critical path: b 3.0 ms (75 %), a 1.0 ms (25 %). The clocks differ by "
          "at most 2 \xc2\xb5s."));
  const std::string pass = element(document, "pass", "svg");
  EXPECT_THAT(pass, AllOf(HasSubstr("class=\"bar part\""), HasSubstr("critical path: b, 3.0 ms")));
  EXPECT_THAT(element(document, "lives-text", "p"), HasSubstr("1 restart and 0 losses"));
  const std::string lives = element(document, "lives", "svg");
  EXPECT_THAT(lives, AllOf(HasSubstr("class=\"restart\""), HasSubstr("class=\"bar ended\""),
                           HasSubstr("class=\"bar life\"")));
}

TEST_F(PageBrowserTest, HostileTextsAreShownAsText) {
  Served served;
  JobBuilder builder = job(0, {kHostile, "b"});
  builder.worker(kHostile).state.set_host(kHostile);
  builder.job.group = kHostile;
  builder.call(kHostile, "b", kHostile, absl::Seconds(9));
  link(builder, kHostile, "b", kHostile, 5);
  proto::ProcessGroupState& group = *builder.worker("b").state.add_groups();
  group.set_title(kHostile);
  group.mutable_last()->set_operation(kHostile);
  builder.worker("b").standing = WorkerView::Standing::kDead;
  builder.worker("b").reason = kHostile;
  served.add(builder.job);
  served.state().pass =
      PassPath{.root = kHostile, .parts = {{kHostile, 0, 1, kHostile}}, .path = {{kHostile, 0, 1, ""}}};
  served.state().status = kHostile;
  const std::string document = served.document();
  // It was shown, everywhere, and the browser made no element of it.
  EXPECT_THAT(element(document, "group", "span"), HasSubstr("&lt;img src=x onerror="));
  EXPECT_THAT(element(document, "calls", "table"), HasSubstr("&lt;/script&gt;"));
  EXPECT_THAT(element(document, "workers", "table"), HasSubstr("&lt;img src=x onerror="));
  EXPECT_THAT(element(document, "reading", "p"), HasSubstr("&lt;img src=x onerror="));
  EXPECT_THAT(document, Not(HasSubstr("id=\"owned\"")));
  EXPECT_THAT(element(document, "graph", "svg"), Not(HasSubstr("<img")));
  EXPECT_THAT(document.substr(0, document.find("<script>")), Not(HasSubstr("<img")));
}

TEST_F(PageBrowserTest, ReadingThatFailsIsShown) {
  Served served;
  served.state().status = "the store does not answer";
  const std::string document = served.document();
  EXPECT_THAT(element(document, "summary", "p"), HasSubstr("The job has not been read yet."));
  EXPECT_THAT(element(document, "reading", "p"),
              AllOf(HasSubstr("class=\"bad\""), HasSubstr("the store does not answer")));
}

}  // namespace
}  // namespace gradwire::inspect
