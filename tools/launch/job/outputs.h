#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/io/pump.h"
#include "gradwire/tools/launch/io/sink.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

// A worker's standard output and error. A descriptor that is not valid means the launcher's own stream.
struct WorkerStreams {
  Descriptor out;
  Descriptor err;
  bool terminal = false;  // Whether one of them is a pseudo terminal.
};

// The targets of the workers' output: the launcher's own streams, files, both (teed) or /dev/null. The files
// are in the log directory, as RUN_ID/attempt_ROUND/LOCAL_RANK/stdout.log and stderr.log, as with torchrun.
// If the directory of a run id exists already, it gets a suffix, so that no run writes into the files of
// another.
//
// The same directories have the workers' error files (tools/launch/process/error_file.h). If nothing else
// goes to files, the directories are temporary and are deleted with this object.
//
// With LaunchOptions::line_buffered a worker's standard output is a pseudo terminal, unless it is the
// launcher's own output and that is a terminal. A program then writes each line at once, so that no line is
// lost when a worker is killed. Standard error is not buffered; it is a pseudo terminal only if both streams
// go to the same pipe or file, because one terminal for both keeps their order.
//
// Use on the thread of the loop, which must outlive this object. Owns the pumps and sinks.
class WorkerOutputs {
 public:
  // `make_terminal` creates pseudo terminals.
  WorkerOutputs(FdLoop& loop, const LaunchOptions& options,
                std::function<absl::StatusOr<Pipe>()> make_terminal = &tools::make_terminal);
  ~WorkerOutputs();

  // Creates the log directory if any worker needs it. Unavailable if that fails.
  absl::Status prepare(const std::string& run_id);
  // Opens the streams of one worker, with their files and pumps. Give them to the worker and close them here:
  // their end is noticed only when the launcher does not have them open any more.
  absl::StatusOr<WorkerStreams> open(int64_t round, const WorkerPlace& place);

  // Prints a line of the launcher itself (launcher_line()). It is not mixed into a worker's teed line.
  void print(absl::string_view text);
  // Prints whole lines, which have no prefix yet and need none. Clears the moving line of a Progress.
  void print_lines(absl::string_view lines);

  // The path of a worker's error file. Empty if no file can be written; then only the worker's output shows
  // the reason of a failure.
  std::string error_file(int64_t round, int local_rank) const;

  const std::string& directory() const { return directory_; }
  bool pumps_open() const;
  // Reads what is in the pipes of all rounds so far, and closes them.
  void close_pumps();
  // Whether all output has been written.
  bool flushed() const;

 private:
  struct OutputStream {
    int64_t round;
    int local_rank;
    std::string prefix;  // The prefix of teed lines.
    StreamRoute route;
    bool is_error;
  };

  // Creates the directory of one worker. Unavailable if that fails.
  absl::StatusOr<std::string> make_directory(int64_t round, int local_rank) const;
  absl::StatusOr<Descriptor> open_stream(const OutputStream& stream, bool& terminal);
  absl::StatusOr<Descriptor> open_file(const OutputStream& stream);
  // Returns a descriptor that is not valid if a pseudo terminal is not wanted for the stream, or cannot be
  // created.
  Descriptor open_terminal(const OutputStream& stream, Descriptor& file);
  void pump(const OutputStream& stream, Descriptor source, Descriptor file);
  OutputSink& sink(bool is_error) { return is_error && error_sink_ ? *error_sink_ : output_sink_; }

  FdLoop& loop_;
  const LaunchOptions& options_;
  const std::function<absl::StatusOr<Pipe>()> make_terminal_;
  bool warned_ = false;  // Whether the user was warned that no pseudo terminal can be created.
  std::string directory_;
  bool temporary_ = false;  // Whether to delete directory_ at the end.
  OutputSink output_sink_;
  // Null if standard output and error are the same pipe: one sink for both then keeps their lines whole.
  std::unique_ptr<OutputSink> error_sink_;
  std::vector<std::unique_ptr<StreamPump>> pumps_;
};

}  // namespace gradwire::tools
