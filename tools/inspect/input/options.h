#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tools/inspect/analysis/finding.h"
#include "gradwire/tools/inspect/input/job_reader.h"

namespace gradwire::inspect {

// The command line of tools/inspect.
struct Options {
  bool help = false;
  bool once = false;
  bool json = false;
  // Whether to print the jobs of this user instead of the state of one.
  bool list = false;
  // Time between two readings.
  absl::Duration interval = absl::Seconds(1);
  JobPlace place;
  Thresholds thresholds;

  // Only for `inspect serve`: where the page is served, and the flight records of the job, if it writes any.
  std::string listen = "127.0.0.1:0";
  std::string flight;
  // Whether --insecure was given. Then other hosts may read the page, too; the description of a job, which
  // has its own SecurityOptions, does not decide this.
  bool insecure_page = false;
};

enum class Command { kView, kServe };

// The command line of "inspect trace".
struct TraceOptions {
  // A file of libtorch's profiler. `worker`: whose it is; empty if it is the only one.
  struct Profile {
    std::string worker;
    std::string path;
  };
  bool help = false;
  std::string out = "trace.json";
  // Flight records, or directories with them. Empty: those of a running job.
  std::vector<std::string> paths;
  // How long the running job is recorded; 0 with paths.
  absl::Duration period;
  JobPlace place;
  std::vector<Profile> profiles;
};

// Parses the arguments after the name of the program, and for kServe after "serve". InvalidArgument for an
// unknown option, one of the other command, or a wrong value.
absl::StatusOr<Options> parse_options(const std::vector<std::string>& arguments,
                                      Command command = Command::kView);
// The same for those after "trace".
absl::StatusOr<TraceOptions> parse_trace_options(const std::vector<std::string>& arguments);
std::string usage();

}  // namespace gradwire::inspect
