#include "gradwire/tools/inspect/live/trace_command.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/inspect/dump/flight_paths.h"
#include "gradwire/tools/inspect/jobs/choose_job.h"
#include "gradwire/tools/inspect/live/record_job.h"
#include "gradwire/tools/inspect/options.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/profiler_trace.h"
#include "gradwire/tools/inspect/trace/write_trace.h"

namespace gradwire::inspect {
namespace {

// The records of the files, or of the running job.
absl::StatusOr<std::vector<tools::FlightFile>> read_records(const TraceOptions& options,
                                                            std::string& errors) {
  std::vector<tools::FlightFile> files;
  if (options.paths.empty()) {
    JobPlace place = options.place;
    GRADWIRE_RETURN_IF_ERROR(choose_job(jobs_of_user(), job_of_environment(), place));
    GRADWIRE_ASSIGN_OR_RETURN(files, record_job(place, options.period, errors));
  } else {
    files = tools::read_flight_paths(options.paths, errors);
  }
  if (files.empty()) return absl::NotFoundError("found no flight records");
  return files;
}

absl::StatusOr<std::string> make_trace(const TraceOptions& options, std::string& errors) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<tools::FlightFile> files, read_records(options, errors));
  std::vector<WorkerTrace> workers = trace_of(files);
  for (const TraceOptions::Profile& each : options.profiles) {
    GRADWIRE_ASSIGN_OR_RETURN(const Profile profile, read_profile(each.path));
    if (const absl::Status added = add_profile(profile, each.worker, workers); !added.ok())
      return with_context(added, each.path);
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> lines, write_trace(workers, options.out));
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

}  // namespace

int trace_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors) {
  const absl::StatusOr<TraceOptions> options = parse_trace_options(arguments);
  if (!options.ok()) {
    absl::StrAppend(&errors, "inspect trace: ", options.status().message(), "\n");
    return 2;
  }
  if (options->help) {
    out += usage();
    return 0;
  }
  const absl::StatusOr<std::string> made = make_trace(*options, errors);
  if (made.ok()) {
    out += *made;
  } else {
    absl::StrAppend(&errors, "inspect trace: ", made.status().message(), "\n");
  }
  return made.ok() ? 0 : 1;
}

}  // namespace gradwire::inspect
