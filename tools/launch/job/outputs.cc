#include "gradwire/tools/launch/job/outputs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/random_id.h"
#include "gradwire/tools/launch/io/launcher_lines.h"
#include "gradwire/tools/launch/options/name_pattern.h"

namespace gradwire::tools {
namespace {

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// The output of workers is for the user who started them alone.
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

// Creates the directory and those above it that are missing. Directories that exist keep their modes.
absl::Status make_directories(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), kDirectoryMode) == 0 || std::filesystem::is_directory(part)) continue;
    return errno_status(absl::StrCat("cannot create log directory ", part), errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> make_temporary_directory() {
  const char* const set = std::getenv("TMPDIR");
  const std::string parent = set != nullptr && *set != '\0' ? set : "/tmp";
  std::string directory = absl::StrCat(parent, "/gradwire_launch_XXXXXX");
  if (mkdtemp(directory.data()) != nullptr) return directory;
  return errno_status(absl::StrCat("cannot create a log directory in ", parent), errno);
}

// Creates a new directory for one run in `log_dir`, which is created if it is missing. If `log_dir` is empty,
// creates it in a new temporary directory.
absl::StatusOr<std::string> make_run_directory(const std::string& log_dir, const std::string& run_id) {
  std::string parent = log_dir;
  if (parent.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(parent, make_temporary_directory());
  }
  GRADWIRE_RETURN_IF_ERROR(make_directories(parent));
  std::string directory = absl::StrCat(parent, "/", run_id);
  // mkdir() fails if the directory exists, so two launchers cannot choose the same one.
  while (mkdir(directory.c_str(), kDirectoryMode) != 0) {
    if (errno != EEXIST) return errno_status(absl::StrCat("cannot create log directory ", directory), errno);
    directory = absl::StrFormat("%s/%s_%08x", parent, run_id, random_id() & 0xffffffff);
  }
  return directory;
}

}  // namespace

WorkerOutputs::WorkerOutputs(FdLoop& loop, const LaunchOptions& options,
                             std::function<absl::StatusOr<Pipe>()> make_terminal)
    : loop_(loop),
      options_(options),
      make_terminal_(std::move(make_terminal)),
      output_sink_(loop, STDOUT_FILENO) {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO))
    error_sink_ = std::make_unique<OutputSink>(loop, STDERR_FILENO);
  for (bool is_error : {false, true}) {
    sink(is_error).on_room([this] {
      for (const auto& pump : pumps_) pump->resume();
    });
  }
}

WorkerOutputs::~WorkerOutputs() {
  std::error_code error;
  if (temporary_) std::filesystem::remove_all(directory_, error);
}

absl::Status WorkerOutputs::prepare(const std::string& run_id) {
  if (!options_.streams.any_file(options_.nproc_per_node)) {
    // The launcher can work without error files, so ignore an error.
    directory_ = make_temporary_directory().value_or("");
    temporary_ = !directory_.empty();
    return absl::OkStatus();
  }
  GRADWIRE_ASSIGN_OR_RETURN(directory_, make_run_directory(options_.log_dir, run_id));
  print(absl::StrCat("the workers' output is in ", directory_));
  return absl::OkStatus();
}

// If both streams go to the same place through a pseudo terminal, they share that terminal, which keeps
// their lines in the order in which the worker wrote them.
absl::StatusOr<WorkerStreams> WorkerOutputs::open(int64_t round, const WorkerPlace& place) {
  const int local_rank = place.local_rank;
  const std::string prefix = options_.line_prefix.empty()
                                 ? absl::StrCat("[", local_name(options_.roles, local_rank), "]:")
                                 : expand_name_pattern(options_.line_prefix, place);
  const OutputStream out{round, local_rank, prefix, options_.streams.out_of(local_rank), /*is_error=*/false};
  const OutputStream err{round, local_rank, prefix, options_.streams.err_of(local_rank), /*is_error=*/true};
  WorkerStreams streams;
  GRADWIRE_ASSIGN_OR_RETURN(streams.out, open_stream(out, streams.terminal));
  const bool same_target = !error_sink_ && out.route == err.route && out.route.console && !out.route.file;
  if (same_target && streams.terminal) {
    // At least 3, because the numbers 0 to 2 are the standard streams.
    streams.err = Descriptor(fcntl(streams.out.get(), F_DUPFD_CLOEXEC, 3));
    if (!streams.err.valid()) return errno_status("cannot duplicate a descriptor", errno);
  } else {
    bool unused = false;
    GRADWIRE_ASSIGN_OR_RETURN(streams.err, open_stream(err, unused));
  }
  return streams;
}

absl::StatusOr<Descriptor> WorkerOutputs::open_stream(const OutputStream& stream, bool& terminal) {
  if (!stream.route.console && !stream.route.file) {
    Descriptor nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!nothing.valid()) return errno_status("cannot open /dev/null", errno);
    return nothing;
  }
  Descriptor file;
  if (stream.route.file) {
    GRADWIRE_ASSIGN_OR_RETURN(file, open_file(stream));
  }
  if (Descriptor end = open_terminal(stream, file); end.valid()) {
    terminal = true;
    return end;
  }
  if (!stream.route.console) return file;
  if (!stream.route.file) return Descriptor();
  GRADWIRE_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  pump(stream, std::move(pipe.read_end), std::move(file));
  return std::move(pipe.write_end);
}

absl::StatusOr<std::string> WorkerOutputs::make_directory(int64_t round, int local_rank) const {
  std::string directory = absl::StrCat(directory_, "/attempt_", round, "/", local_rank);
  GRADWIRE_RETURN_IF_ERROR(make_directories(directory));
  return directory;
}

std::string WorkerOutputs::error_file(int64_t round, int local_rank) const {
  if (directory_.empty()) return "";
  const absl::StatusOr<std::string> directory = make_directory(round, local_rank);
  return directory.ok() ? absl::StrCat(*directory, "/error.json") : "";
}

absl::StatusOr<Descriptor> WorkerOutputs::open_file(const OutputStream& stream) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string directory, make_directory(stream.round, stream.local_rank));
  const std::string path = absl::StrCat(directory, stream.is_error ? "/stderr.log" : "/stdout.log");
  // Append, so that a worker that opens the file again does not overwrite its own lines.
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, kFileMode));
  if (!file.valid()) return errno_status(absl::StrCat("cannot open log file ", path), errno);
  return file;
}

Descriptor WorkerOutputs::open_terminal(const OutputStream& stream, Descriptor& file) {
  if (!options_.line_buffered || stream.is_error) return Descriptor();
  // No pseudo terminal is needed if the launcher's own output is a terminal.
  if (!stream.route.file && isatty(STDOUT_FILENO)) return Descriptor();
  absl::StatusOr<Pipe> terminal = make_terminal_();
  if (!terminal.ok()) {
    if (!warned_) {
      print(absl::StrCat(
          "cannot make the workers' standard output line buffered: ", terminal.status().message(),
          "; output that is not flushed is lost if a worker is killed (--line_buffered=false silences "
          "this)"));
    }
    warned_ = true;
    return Descriptor();
  }
  pump(stream, std::move(terminal->read_end), std::move(file));
  return std::move(terminal->write_end);
}

void WorkerOutputs::pump(const OutputStream& stream, Descriptor source, Descriptor file) {
  StreamPump::Targets targets;
  // A teed line gets the worker's name as prefix. A line that goes only to the launcher's own stream is not
  // changed.
  if (stream.route.console) {
    targets.sink = &sink(stream.is_error);
    if (file.valid()) targets.lines = LinePrefixer(stream.prefix);
  }
  targets.file = std::move(file);
  pumps_.push_back(std::make_unique<StreamPump>(loop_, std::move(source), std::move(targets)));
}

void WorkerOutputs::print(absl::string_view text) { print_lines(launcher_line(text)); }

// The sinks do not know of the moving line, so it must not be on the screen while they write.
void WorkerOutputs::print_lines(absl::string_view lines) {
  LineOutput::standard_error().clear_any();
  sink(true).append(lines);
}

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
