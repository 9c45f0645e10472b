#include "tools/launch/outputs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/random_id.h"

namespace gradwire::tools {
namespace {

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

absl::Status make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot make log directory ", path, ": ", error.message()));
  return absl::OkStatus();
}

std::string temporary_directory() {
  const char* directory = std::getenv("TMPDIR");
  return directory != nullptr && *directory != '\0' ? directory : "/tmp";
}

}  // namespace

absl::StatusOr<std::string> make_run_directory(const std::string& log_dir, const std::string& temporary,
                                               const std::string& run_id) {
  std::string parent = log_dir;
  if (parent.empty()) {
    parent = absl::StrCat(temporary, "/gradwire_launch_XXXXXX");
    if (mkdtemp(parent.data()) == nullptr) {
      return errno_status(absl::StrCat("cannot make a log directory in ", temporary), errno);
    }
  }
  GRADWIRE_RETURN_IF_ERROR(make_directories(parent));
  std::string directory = absl::StrCat(parent, "/", run_id);
  while (mkdir(directory.c_str(), 0777) != 0) {
    if (errno != EEXIST) return errno_status(absl::StrCat("cannot make log directory ", directory), errno);
    directory = absl::StrFormat("%s/%s_%08x", parent, run_id, random_id() & 0xffffffff);
  }
  return directory;
}

WorkerOutputs::WorkerOutputs(EventLoop& loop, const LaunchOptions& options)
    : loop_(loop), options_(options), output_sink_(loop, STDOUT_FILENO) {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO))
    error_sink_ = std::make_unique<OutputSink>(loop, STDERR_FILENO);
  for (bool is_error : {false, true}) {
    sink(is_error).on_room([this] {
      for (const auto& pump : pumps_) pump->resume();
    });
  }
}

absl::Status WorkerOutputs::prepare(const std::string& run_id) {
  if (!options_.streams.any_file(options_.nproc_per_node)) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(directory_, make_run_directory(options_.log_dir, temporary_directory(), run_id));
  say(absl::StrCat("the workers' output is in ", directory_));
  return absl::OkStatus();
}

absl::StatusOr<WorkerStreams> WorkerOutputs::open(int64_t round, int local_rank) {
  WorkerStreams streams;
  GRADWIRE_ASSIGN_OR_RETURN(streams.out,
                            open_stream(round, local_rank, options_.streams.out_of(local_rank), false));
  GRADWIRE_ASSIGN_OR_RETURN(streams.err,
                            open_stream(round, local_rank, options_.streams.err_of(local_rank), true));
  return streams;
}

absl::StatusOr<Fd> WorkerOutputs::open_stream(int64_t round, int local_rank, StreamRoute route,
                                              bool is_error) {
  if (!route.file && route.console) return Fd();
  if (!route.file) {
    Fd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!nothing.valid()) return errno_status("cannot open /dev/null", errno);
    return nothing;
  }
  const std::string directory = absl::StrCat(directory_, "/attempt_", round, "/", local_rank);
  GRADWIRE_RETURN_IF_ERROR(make_directories(directory));
  const std::string path = absl::StrCat(directory, is_error ? "/stderr.log" : "/stdout.log");
  // Appending, so that a worker that opens the file once more does not write over its own lines.
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) return errno_status(absl::StrCat("cannot open log file ", path), errno);
  if (!route.console) return file;
  GRADWIRE_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  pumps_.push_back(std::make_unique<StreamPump>(
      loop_, std::move(pipe.read_end), std::move(file),
      absl::StrCat("[", local_name(options_.roles, local_rank), "]:"), sink(is_error)));
  return std::move(pipe.write_end);
}

void WorkerOutputs::say(absl::string_view text) { sink(true).append(absl::StrCat("launch: ", text, "\n")); }

void WorkerOutputs::say_lines(absl::string_view lines) { sink(true).append(lines); }

bool WorkerOutputs::pumps_open() const {
  for (const auto& pump : pumps_) {
    if (pump->open()) return true;
  }
  return false;
}

void WorkerOutputs::close_pumps() {
  for (const auto& pump : pumps_) pump->close();
  pumps_.clear();
}

bool WorkerOutputs::flushed() const { return output_sink_.empty() && (!error_sink_ || error_sink_->empty()); }

}  // namespace gradwire::tools
