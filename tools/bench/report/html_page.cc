#include "gradwire/tools/bench/report/html_page.h"

#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/bench/report/aims.h"
#include "gradwire/tools/bench/report/svg_plot.h"

namespace gradwire::bench {
namespace {

constexpr absl::string_view kStyle = R"css(
:root { --page: #fbfaf8; --card: #ffffff; --ink: #22242a; --soft: #6b7078; --rule: #e5e3de; --good: #2b8a57;
  --bad: #c23b3b; --gradwire: #e2592b; --torch: #2f6fb2; --grpc: #3f9c8d; --other: #8a63b8;
  --floor: #9aa0a8; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --card: #1e2126; --ink: #e6e7ea;
  --soft: #9aa0aa;
  --rule: #32363d; --good: #56c088; --bad: #ef7a75; --gradwire: #ff7b4d; --torch: #6aa9ec; --grpc: #5cc4b3;
  --other: #b592e0; --floor: #757c86; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -.01em; } h1 b { color: var(--gradwire); }
h2 { font-size: 18px; margin: 40px 0 12px; }
.lead { color: var(--soft); margin: 0 0 18px; max-width: 78ch; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; color: var(--soft);
  font-size: 13px; }
dt { color: var(--ink); } dd { margin: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 18px;
  align-items: start; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px; }
svg { width: 100%; height: auto; display: block; font-family: inherit; }
svg text { fill: var(--ink); font-size: 12px; } svg .title { font-size: 14px; font-weight: 600; }
svg .tick, svg .label { fill: var(--soft); font-size: 11px; }
svg .value { font-size: 10.5px; fill: var(--soft); }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke: var(--other); stroke-width: 1.8; stroke-linejoin: round; }
svg .dot, svg .bar { fill: var(--other); } svg .name { font-size: 12px; }
svg .worse { opacity: .55; }
svg .line.system-gradwire { stroke: var(--gradwire); stroke-width: 2.8; }
svg .dot.system-gradwire, svg .name.system-gradwire { fill: var(--gradwire); font-weight: 600; }
svg .line.system-torch_tensorpipe { stroke: var(--torch); }
svg .bar.system-torch_tensorpipe, svg .dot.system-torch_tensorpipe,
  svg .name.system-torch_tensorpipe { fill: var(--torch); }
svg .line.system-grpc { stroke: var(--grpc); }
svg .bar.system-grpc, svg .dot.system-grpc, svg .name.system-grpc { fill: var(--grpc); }
svg .line.floor { stroke: var(--floor); stroke-dasharray: 5 4; }
svg .dot.floor, svg .name.floor, svg .bar.floor { fill: var(--floor); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; position: sticky; top: 0; background: var(--card); }
td.n, th.n { text-align: right; } tr.first td { border-top: 2px solid var(--rule); }
.ok { color: var(--good); font-weight: 600; } .miss { color: var(--bad); font-weight: 600; }
.muted { color: var(--soft); }
ul { padding-left: 20px; color: var(--soft); font-size: 13px; }
details > summary { cursor: pointer; font-size: 18px; font-weight: 600; margin: 40px 0 12px; }
)css";

// Formats a size: 8 -> "8 B", 65536 -> "64 KiB".
std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 3; ++unit) bytes /= 1024;
  return absl::StrCat(short_number(bytes), " ", units[unit]);
}

std::string time_text(double micros) {
  if (micros >= 1e6) return short_number(micros / 1e6) + " s";
  if (micros >= 1e3) return short_number(micros / 1e3) + " ms";
  return short_number(micros) + " µs";
}

std::string count_text(double count) {
  if (count >= 1e6) return short_number(count / 1e6) + "M";
  if (count >= 1e3) return short_number(count / 1e3) + "k";
  return short_number(count);
}

PlotOptions plot_options(const std::string& plot, const std::string& transport) {
  if (absl::StartsWith(plot, "inflight_")) {
    return {absl::StrCat("Throughput against calls in flight, ", plot, ", ", transport), "calls in flight",
            "calls a second", &count_text, &count_text};
  }
  if (plot == "all_to_all") {
    return {absl::StrCat("First contact of all workers, ", transport), "workers", "time", &count_text,
            [](double ms) { return time_text(ms * 1000); }};
  }
  if (absl::StartsWith(plot, "all_reduce_")) {
    return {absl::StrCat(plot, ": latency against size"), "bytes of each rank", "p50", &bytes_text,
            &time_text};
  }
  return {absl::StrCat("Latency of an echo against its size, ", transport), "bytes each way",
          "p50 of the round trip", &bytes_text, &time_text};
}

std::string plots(const Report& report) {
  // The curves by plot and transport; `keys` has the order of measuring.
  std::vector<std::pair<std::string, std::string>> keys;
  std::map<std::pair<std::string, std::string>, std::vector<PlotSeries>> all;
  for (const Curve& curve : report.curves) {
    const std::pair<std::string, std::string> key(curve.plot, curve.transport);
    if (all.find(key) == all.end()) keys.push_back(key);
    all[key].push_back({curve.system, curve.points});
  }
  std::string html;
  for (const auto& key : keys) {
    // A plot with only one point is left out: the table has the figure.
    bool is_line = false;
    for (const PlotSeries& series : all[key]) is_line |= series.points.size() > 1;
    if (!is_line) continue;
    absl::StrAppend(&html, "<div class=card>", line_plot(plot_options(key.first, key.second), all[key]),
                    "</div>");
  }
  return html.empty() ? "" : absl::StrCat("<h2>How it scales</h2><div class=grid>", html, "</div>");
}

std::string bars(const Report& report) {
  std::vector<std::string> titles;
  std::map<std::string, std::vector<BarGroup>> charts;
  for (const Row& row : report.rows) {
    const bool headline = row.metric == "p50_us" || row.metric == "calls_per_s" ||
                          row.metric == "items_per_s" || row.metric == "steps_per_s" ||
                          row.metric == "first_contact_ms" || row.metric == "in_flight_failed_ms";
    if (!headline || row.peer.empty() || absl::StartsWith(row.peer, "floor_") || row.ratio <= 0) continue;
    // The headline of this case is its rate.
    if (row.metric == "p50_us" && row.case_name == "oversubscribed_add2") continue;
    const bool rpc = row.suite == "rpc";
    const std::string title = rpc                          ? absl::StrCat("Calls over ", row.transport)
                              : row.suite == "collectives" ? "Collectives"
                                                           : "Other suites";
    const std::string name =
        rpc || row.suite == "collectives"
            ? row.case_name
            : absl::StrCat(row.suite, " ", row.case_name,
                           row.transport == row.suite ? "" : absl::StrCat(", ", row.transport));
    if (charts.find(title) == charts.end()) titles.push_back(title);
    std::vector<BarGroup>& groups = charts[title];
    if (groups.empty() || groups.back().name != name) groups.push_back({name, {}});
    groups.back().bars.push_back(
        {row.peer, row.ratio,
         absl::StrCat(row.case_name, " ", row.metric, ": gradwire ", short_number(row.gradwire), ", ",
                      row.peer, " ", short_number(row.peer_value))});
  }
  std::string html;
  for (const std::string& title : titles) {
    absl::StrAppend(&html, "<div class=card>",
                    ratio_bars(title + ": times better than the peer", charts[title]), "</div>");
  }
  return html.empty() ? "" : absl::StrCat("<h2>Compared with its peers</h2><div class=grid>", html, "</div>");
}

std::string aim_text(const Aim& aim) {
  if (aim.text.empty()) return "";
  return absl::StrCat("<span class=", aim.met ? "ok" : "miss", ">", escape_html(aim.text), "</span> ");
}

std::string row_html(const Row& row, bool first, const std::string& aims) {
  const bool alone = row.peer.empty();
  return absl::StrCat("<tr", first ? " class=first" : "", "><td>", escape_html(row.suite), "<td>",
                      escape_html(row.case_name), "<td>", escape_html(row.transport), "<td>",
                      escape_html(row.metric), "<td class=n>", short_number(row.gradwire), "<td>",
                      escape_html(row.peer), "<td class=n>", alone ? "" : short_number(row.peer_value),
                      "<td class=n>", alone ? "" : short_number(row.ratio) + "x", "<td>", aims, "</tr>\n");
}

constexpr absl::string_view kTableHead =
    "<div class=\"card scroll\"><table><tr><th>suite<th>case<th>over<th>metric<th "
    "class=n>gradwire<th>peer<th "
    "class=n>peer's<th class=n>times better<th>aim</tr>\n";

std::string tables(const Report& report) {
  std::string aims, all;
  const Row* last = nullptr;
  for (const Row& row : report.rows) {
    // A bound on Gradwire's own figure is printed once, not once for each peer.
    const bool repeated = last != nullptr && same_figure(*last, row);
    const std::string cell = absl::StrCat(repeated ? "" : aim_text(own_aim_of(row)), aim_text(aim_of(row)));
    if (!cell.empty() && row.metric != "p99_over_p50") absl::StrAppend(&aims, row_html(row, false, cell));
    const bool first =
        last == nullptr || last->case_name != row.case_name || last->transport != row.transport;
    absl::StrAppend(&all, row_html(row, first, cell));
    last = &row;
  }
  std::string html;
  if (!aims.empty())
    absl::StrAppend(&html, "<h2>Aims</h2><pre>", escape_html(aims_summary(report.rows)), "</pre>", kTableHead,
                    aims, "</table></div>");
  absl::StrAppend(&html, "<details open><summary>Every figure</summary>", kTableHead, all,
                  "</table></div></details>");
  return html;
}

}  // namespace

std::string html_page(const Report& report) {
  std::string html = absl::StrCat(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
      "<title>Gradwire and its peers</title><style>",
      kStyle,
      "</style><main><h1><b>Gradwire</b> and its peers</h1><p class=lead>All systems were measured in one "
      "run. Each "
      "system had its own processes. The systems ran one after the other in each round; while one ran, the "
      "others "
      "slept. Absolute figures depend on the machine, so compare the ratios. Gradwire is better where the "
      "ratio is "
      "above 1x.</p><dl>");
  for (const auto& [name, value] : report.about) {
    absl::StrAppend(&html, "<dt>", escape_html(name), "<dd>", escape_html(value));
  }
  absl::StrAppend(&html, "</dl>", bars(report), plots(report), tables(report));
  if (!report.skipped.empty()) {
    absl::StrAppend(&html, "<h2>Not measured</h2><ul>");
    for (const std::string& line : report.skipped) absl::StrAppend(&html, "<li>", escape_html(line));
    absl::StrAppend(&html, "</ul>");
  }
  return html + "</main></html>\n";
}

}  // namespace gradwire::bench
