#include "gradwire/tools/inspect/trace/trace_command.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/inspect/dump/flight_paths.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/write_trace.h"

namespace gradwire::inspect {
namespace {

constexpr char kUsage[] =
    "usage: inspect trace [--out=FILE] PATH...\n"
    "  PATH        a flight record (*.jsonl), or a directory with flight records\n"
    "  --out=FILE  the trace; default trace.json. Open it with https://ui.perfetto.dev or chrome://tracing\n";

}  // namespace

int trace_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors) {
  std::string target = "trace.json";
  std::vector<std::string> paths;
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "--out=") && argument.size() > 6) {
      target = std::string(absl::StripPrefix(argument, "--out="));
    } else if (absl::StartsWith(argument, "-")) {
      absl::StrAppend(&errors, "unknown option: got ", argument, "\n", kUsage);
      return 2;
    } else {
      paths.push_back(argument);
    }
  }
  if (paths.empty()) {
    absl::StrAppend(&errors, kUsage);
    return 2;
  }
  const std::vector<tools::FlightFile> files = tools::read_flight_paths(paths, errors);
  if (files.empty()) {
    absl::StrAppend(&errors, "found no flight records\n");
    return 1;
  }
  const absl::StatusOr<std::vector<std::string>> lines = write_trace(trace_of(files), target);
  if (!lines.ok()) {
    absl::StrAppend(&errors, lines.status().message(), "\n");
    return 1;
  }
  absl::StrAppend(&out, absl::StrJoin(*lines, "\n"), "\n");
  return 0;
}

}  // namespace gradwire::inspect
