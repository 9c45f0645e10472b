#include "gradwire/tools/inspect/live/trace_command.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/input/job_reader.h"
#include "gradwire/tools/inspect/input/options.h"
#include "gradwire/tools/inspect/jobs/choose_job.h"
#include "gradwire/tools/inspect/live/flight_collector.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/profiler_trace.h"
#include "gradwire/tools/inspect/trace/write_trace.h"

namespace gradwire::inspect {
namespace {

// Workers answer at most 20 questions a second.
constexpr absl::Duration kPause = absl::Milliseconds(60);

class JobAsker : public FlightAsker {
 public:
  explicit JobAsker(JobReader& reader) : reader_(reader) {}
  std::vector<rpc::Observer::Answer> ask(const std::vector<rpc::Observer::Question>& questions) override {
    absl::SleepFor(answered_ + kPause - Clock::system().now());
    std::vector<rpc::Observer::Answer> answers = reader_.ask(questions);
    answered_ = Clock::system().now();
    return answers;
  }

 private:
  JobReader& reader_;
  absl::Time answered_ = absl::InfinitePast();
};

// Waits for `period`, and returns what the workers of the job have recorded in it (FlightCollector). Appends
// a line to `errors` for each worker that is missing. Errors: those of JobReader.
absl::StatusOr<std::vector<tools::FlightFile>> record_job(const JobPlace& place, absl::Duration period,
                                                          std::string& errors) {
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<JobReader> reader, JobReader::open(place));
  JobAsker asker(*reader);
  FlightCollector collector(asker);
  std::string warning;
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<proto::WorkerRecord> members, reader->members(warning));
  for (const std::string& problem : collector.begin(members)) absl::StrAppend(&errors, problem, "\n");
  absl::SleepFor(period);
  GRADWIRE_ASSIGN_OR_RETURN(members, reader->members(warning));
  if (!warning.empty()) absl::StrAppend(&errors, warning, "\n");
  FlightCollector::Collected collected = collector.end(members);
  for (const std::string& problem : collected.problems) absl::StrAppend(&errors, problem, "\n");
  return std::move(collected.files);
}

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
