#include "gradwire/tools/inspect/trace/trace_command.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/inspect/dump/flight_paths.h"
#include "gradwire/tools/inspect/trace/align_workers.h"
#include "gradwire/tools/inspect/trace/chrome_trace.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"

namespace gradwire::inspect {
namespace {

constexpr char kUsage[] =
    "usage: inspect trace [--out=FILE] PATH...\n"
    "  PATH        a flight record (*.jsonl), or a directory with flight records\n"
    "  --out=FILE  the trace; default trace.json. Open it with https://ui.perfetto.dev or chrome://tracing\n";

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good();
}

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
  const std::vector<WorkerTrace> workers = trace_of(files);
  const std::vector<WorkerClock> clocks = align_workers(workers);
  if (!write_file(target, chrome_trace(workers, clocks))) {
    absl::StrAppend(&errors, "cannot write the trace ", target, ": ", std::strerror(errno), "\n");
    return 1;
  }
  std::size_t spans = 0;
  for (const WorkerTrace& worker : workers) spans += worker.spans.size();
  absl::StrAppend(&out, "wrote ", target, ": ", spans, " spans of ", workers.size(),
                  workers.size() == 1 ? " worker\n" : " workers\n");
  for (std::size_t i = 1; i < workers.size(); ++i) {
    if (clocks[i].known) {
      absl::StrAppend(&out,
                      absl::StrFormat("  the clock of \"%s\" is mapped with an error of at most %.1f us\n",
                                      workers[i].name, clocks[i].fit.error() / 1000));
    } else {
      absl::StrAppend(&out, "  the clock of \"", workers[i].name,
                      "\" is not mapped: no calls with known ends connect it to \"", workers[0].name,
                      "\", or a clock was set\n");
    }
  }
  return 0;
}

}  // namespace gradwire::inspect
