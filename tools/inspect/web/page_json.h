#pragma once

#include <optional>
#include <string>

#include "gradwire/tools/inspect/view/report.h"
#include "gradwire/tools/inspect/web/critical_path.h"
#include "gradwire/tools/inspect/web/history.h"

namespace gradwire::inspect {

// Everything that the page shows at one time.
struct PageState {
  // The error of the reading; empty if it succeeded.
  std::string status;
  // How connections between hosts are protected: "token", "certificates", "no protection", or "this host
  // only".
  std::string protection;
  // The last reading; nullptr before the first one.
  const Report* report = nullptr;
  const History* history = nullptr;
  // From flight records, if there are any, and why they could not be read.
  std::optional<PassPath> pass;
  std::string flight_status;
};

// The state as one JSON object, in which all characters are ASCII:
//   status, protection, flight_status: as in PageState; summary: one line about the workers
//   report    as json_report() (docs/observability.md), or null
//   calls     the slowest chains of calls that are open. Each is a list from the program's own call to the
//             innermost one: callee, caller, worker, stage, age_s, left_s (null without a deadline)
//   samples   time (seconds since 1970), calls, p50_s, p99_s (null without calls), calls_per_s, bytes_per_s
//   lives     name, began, ended (null while the worker lives), how; restarts: a list of times
//   passes    root, number, began, took_s, in_progress, workers
//   pass      the last pass of the flight records: root, number, total_s, error_s (null if unknown), parts
//   and
//             path: lists of worker, begin_s, end_s, result. Or null
std::string page_json(const PageState& state);

}  // namespace gradwire::inspect
