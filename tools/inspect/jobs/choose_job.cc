#include "gradwire/tools/inspect/jobs/choose_job.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/store/init/process_place.h"
#include "gradwire/tools/inspect/analysis/text.h"
#include "gradwire/tools/inspect/view/table.h"
#include "gradwire/tools/running_jobs/running_job.h"
#include "gradwire/tools/running_jobs/runtime_folder.h"

namespace gradwire::inspect {
namespace {

using tools::RunningJob;
using tools::RunningJobs;

constexpr char kElse[] = "give --store=HOST:PORT, or set MASTER_ADDR and MASTER_PORT as for its workers";

bool has_credentials(const SecurityOptions& options) {
  return options.insecure || !options.token_file.empty() || !options.certificate_file.empty() ||
         !options.key_file.empty() || !options.authority_file.empty();
}

std::string problems_text(const RunningJobs& jobs) {
  std::string text;
  for (const std::string& problem : jobs.problems) absl::StrAppend(&text, "\n  ", printable(problem));
  return text;
}

std::string name_of(const RunningJob& job) {
  return absl::StrCat(in_quotes(job.id), " (launcher ", job.launcher, ", ", printable(job.program), ")");
}

}  // namespace

RunningJobs jobs_of_user() {
  return find_running_jobs(tools::RuntimeFolders::of(&store::environment_variable));
}

bool job_of_environment() { return store::environment_variable("MASTER_PORT").has_value(); }

absl::Status choose_job(const RunningJobs& jobs, bool in_environment, JobPlace& place) {
  if (place.store != JobPlace().store || (place.job.empty() && in_environment)) {
    return absl::OkStatus();
  }
  std::vector<const RunningJob*> fit;
  for (const RunningJob& job : jobs.jobs) {
    if (!place.job.empty() && job.id != place.job && absl::StrCat(job.launcher) != place.job) continue;
    const bool same = !fit.empty() && fit.back()->id == job.id && fit.back()->store == job.store;
    if (!same) fit.push_back(&job);
  }
  if (fit.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place.job.empty() ? std::string("no launcher of this user runs a job on this host")
                          : absl::StrCat("no launcher of this user runs the job ", in_quotes(place.job),
                                         " on this host; --list prints those that run"),
        ": ", kElse, problems_text(jobs)));
  }
  if (fit.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(fit.size(), " jobs fit: choose one by --job=ID, or by the process id of its launcher:",
                     absl::StrJoin(fit, "", [](std::string* out, const RunningJob* job) {
                       absl::StrAppend(out, "\n  ", name_of(*job));
                     })));
  }
  const RunningJob& job = *fit.front();
  place.store = job.store;
  if (has_credentials(place.security)) return absl::OkStatus();
  place.security = job.security;
  if (place.name == JobPlace().name && !job.observer.empty()) place.name = job.observer;
  return absl::OkStatus();
}

std::string list_text(const RunningJobs& jobs, absl::Time now) {
  Table table{.columns = {{"job"}, {"launcher", true}, {"age", true}, {"store"}, {"program"}}};
  for (const RunningJob& job : jobs.jobs) {
    table.rows.push_back({.cells = {{printable(job.id)},
                                    {absl::StrCat(job.launcher)},
                                    {text_of(now - job.began)},
                                    {printable(job.store)},
                                    {printable(job.program)}}});
  }
  std::string text = jobs.jobs.empty() ? std::string("no launcher of this user runs a job on this host\n")
                                       : absl::StrCat(absl::StrJoin(lines_of(table, 0), "\n"), "\n");
  for (const std::string& problem : jobs.problems) absl::StrAppend(&text, printable(problem), "\n");
  return text;
}

}  // namespace gradwire::inspect
