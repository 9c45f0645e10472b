#include "gradwire/tools/inspect/view/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/text.h"
#include "gradwire/tools/inspect/view/tables.h"

namespace gradwire::inspect {

std::string summary_of(const Report& report) {
  const auto& workers = report.job.workers;
  const auto members =
      std::count_if(workers.begin(), workers.end(), [](const auto& each) { return each.is_member(); });
  const auto answered =
      std::count_if(workers.begin(), workers.end(), [](const auto& each) { return each.answered(); });
  return absl::StrCat(
      members, members == 1 ? " worker" : " workers", ", ",
      answered == members ? "all answer" : absl::StrCat(members - answered, " of them without an answer"),
      "; ",
      report.findings.empty()
          ? "no problem found"
          : absl::StrCat(report.findings.size(), report.findings.size() == 1 ? " problem" : " problems"));
}

std::string text_report(const Report& report) {
  std::string out = absl::StrCat("group ", printable(report.job.group), " at ",
                                 absl::FormatTime("%H:%M:%S", report.job.time, absl::LocalTimeZone()), ": ",
                                 summary_of(report), "\n");
  const Table tables[] = {findings_table(report.findings),
                          workers_table(report.job, report.rates),
                          links_table(report.job, report.rates),
                          calls_table(report.job),
                          functions_table(report.job),
                          passes_table(report.job),
                          rrefs_table(report.job),
                          groups_table(report.job)};
  for (const Table& table : tables) {
    if (table.rows.empty()) continue;
    absl::StrAppend(&out, "\n", table.title, "\n");
    for (const std::string& line : lines_of(table, 0)) absl::StrAppend(&out, "  ", line, "\n");
    if (!table.note.empty()) absl::StrAppend(&out, "  ", table.note, "\n");
  }
  return out;
}

}  // namespace gradwire::inspect
