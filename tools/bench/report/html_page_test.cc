#include "gradwire/tools/bench/report/html_page.h"

#include "gmock/gmock.h"
#include "gradwire/tools/bench/report/svg_plot.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Report report() {
  Report report;
  report.rows = {{.suite = "rpc",
                  .case_name = "add2",
                  .transport = "tcp",
                  .metric = "p50_us",
                  .gradwire = 5,
                  .peer = "grpc",
                  .peer_value = 50,
                  .ratio = 10}};
  report.curves = {{"echo", "tcp", "gradwire", {{8, 5}, {4096, 9}}},
                   {"echo", "tcp", "grpc", {{8, 50}, {4096, 60}}}};
  report.skipped = {"torch <gone> & \"lost\""};
  return report;
}

TEST(HtmlPage, ShowsFiguresPlotsAndAims) {
  const std::string page = html_page(report());
  EXPECT_THAT(page, AllOf(HasSubstr("ok &gt;= 4x"), HasSubstr("system-grpc"), HasSubstr("4 KiB"),
                          HasSubstr(">10x<")));
}

TEST(HtmlPage, IsSelfContained) {
  const std::string page = html_page(report());
  EXPECT_THAT(page, AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr("<link"))));
}

TEST(HtmlPage, EscapesWhatAProcessPrinted) {
  EXPECT_THAT(html_page(report()), HasSubstr("torch &lt;gone&gt; &amp; &quot;lost&quot;"));
}

TEST(HtmlPage, AnEmptyReportGivesAPage) { EXPECT_THAT(html_page({}), HasSubstr("</html>")); }

TEST(LinePlot, WithoutPointsIsEmpty) { EXPECT_EQ(line_plot({}, {}), ""); }

TEST(LinePlot, OnePointGivesFiniteCoordinates) {
  const PlotOptions options{.x_text = [](double) { return "x"; }, .y_text = [](double) { return "y"; }};
  const std::string svg = line_plot(options, {{"gradwire", {{8, 3}}}});
  EXPECT_THAT(svg, AllOf(HasSubstr("<circle"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace gradwire::bench
