// tools/inspect: what a running job does, and what is wrong with it. docs/observability.md is the guide.
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/users_directory.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/dump/dump_command.h"
#include "gradwire/tools/inspect/input/background_reader.h"
#include "gradwire/tools/inspect/input/job_reader.h"
#include "gradwire/tools/inspect/input/options.h"
#include "gradwire/tools/inspect/jobs/choose_job.h"
#include "gradwire/tools/inspect/live/trace_command.h"
#include "gradwire/tools/inspect/terminal.h"
#include "gradwire/tools/inspect/view/report.h"
#include "gradwire/tools/inspect/view/screen.h"
#include "gradwire/tools/inspect/web/serve_command.h"

namespace gradwire::inspect {
namespace {

constexpr int kCannotRead = 1;
constexpr int kWrongCommandLine = 2;
constexpr int kProblemFound = 3;

int fail(const absl::Status& status) {
  std::fprintf(stderr, "inspect: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? kWrongCommandLine : kCannotRead;
}

// Reads the job twice, for the rates.
int print_once(const Options& options) {
  absl::StatusOr<std::unique_ptr<JobReader>> reader = JobReader::open(options.place);
  if (!reader.ok()) return fail(reader.status());
  std::string warning;
  absl::StatusOr<JobView> before = (*reader)->read(warning);
  if (!before.ok()) return fail(before.status());
  absl::SleepFor(options.interval);
  absl::StatusOr<JobView> now = (*reader)->read(warning);
  if (!now.ok()) return fail(now.status());
  if (!warning.empty()) std::fprintf(stderr, "inspect: %s\n", warning.c_str());
  Report report;
  report.rates = compare(*before, *now);
  report.findings = analyze(*now, options.thresholds);
  report.job = *std::move(now);
  const std::string text = options.json ? json_report(report) : text_report(report);
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) return kCannotRead;
  return report.findings.empty() ? 0 : kProblemFound;
}

// The terminal is opened first: it blocks signals, which threads inherit.
int show_live(const Options& options) {
  absl::StatusOr<std::unique_ptr<Terminal>> terminal = Terminal::open();
  if (!terminal.ok()) return fail(terminal.status());
  BackgroundReader reader(options);
  Screen screen;
  Report report;
  std::string status;
  while (true) {
    if (!screen.paused()) reader.latest(report, status);
    const Terminal::Size size = (*terminal)->size();
    const std::vector<std::string> lines = screen.draw(report, status, size.width, size.height);
    (*terminal)->show(lines, screen.selected_line());
    const Terminal::Event event = (*terminal)->wait(absl::Milliseconds(100));
    if (event.ends || !screen.press(event.keys)) return 0;
  }
}

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "dump" || arguments[0] == "trace")) {
    std::string out, errors;
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    const int code =
        arguments[0] == "dump" ? tools::dump_command(rest, out, errors) : trace_command(rest, out, errors);
    std::fputs(out.c_str(), stdout);
    std::fputs(errors.c_str(), stderr);
    return code;
  }
  const bool serves = !arguments.empty() && arguments[0] == "serve";
  absl::StatusOr<Options> options =
      serves ? parse_options({arguments.begin() + 1, arguments.end()}, Command::kServe)
             : parse_options(arguments);
  if (!options.ok()) return fail(options.status());
  if (options->help) {
    std::fputs(usage().c_str(), stdout);
    return 0;
  }
  const tools::RunningJobs jobs = jobs_of_user();
  if (options->list) {
    std::fputs(list_text(jobs, Clock::system().now()).c_str(), stdout);
    return 0;
  }
  if (const absl::Status chosen = choose_job(jobs, job_of_environment(), options->place); !chosen.ok())
    return fail(chosen);
  if (serves) return serve_command(*options);
  return options->once ? print_once(*options) : show_live(*options);
}

}  // namespace
}  // namespace gradwire::inspect

int main(int argc, char** argv) {
  gradwire::return_to_users_directory();
  return gradwire::inspect::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
