#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/inspect/analysis/finding.h"
#include "gradwire/tools/inspect/analysis/job_view.h"
#include "gradwire/tools/inspect/analysis/rates.h"

namespace gradwire::inspect {

// A job at one time, with what the analysis says about it.
struct Report {
  JobView job;
  Rates rates;
  std::vector<Finding> findings;
};

// The report as text, for `--once`: a summary, the findings, and all tables that are not empty.
std::string text_report(const Report& report);
// The report as JSON, for `--once --json`: an object with the members "group", "time", "workers" and
// "findings" (docs/observability.md). Strings that are not UTF-8 are escaped. `for_people`: with line breaks.
std::string json_report(const Report& report, bool for_people = true);
// One line: how many workers there are, how many answer, and how many problems were found.
std::string summary_of(const Report& report);

}  // namespace gradwire::inspect
