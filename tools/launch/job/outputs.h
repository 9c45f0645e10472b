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
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

// What a worker gets as its standard output and error; not valid: the launcher's own.
struct WorkerStreams {
  Descriptor out;
  Descriptor err;
  bool terminal = false;  // one of them is a pseudo terminal
};

// Where the workers' output goes: the launcher's own streams, files, both (teed) or nowhere. Files lie under
// the log directory as RUN_ID/attempt_ROUND/LOCAL_RANK/stdout.log and stderr.log, as torchrun lays them out;
// a run id whose directory is there already gets a suffix, so that no run writes into the files of another.
//
// The same directories hold what workers die of (tools/launch/process/error_file.h). Where nothing else goes
// to files they are temporary and go with this object.
//
// With LaunchOptions::line_buffered a worker's standard output is a pseudo terminal, unless the launcher's
// own, which it would get, is a terminal: a program then writes whole lines at once, and none is lost with a
// worker that is killed. Standard error is not buffered, and a pseudo terminal only where both streams go to
// the same pipe or file: one for both keeps their order.
//
// On the loop's thread, which outlives it. Owns pumps and sinks.
class WorkerOutputs {
 public:
  // `make_terminal`: where pseudo terminals come from.
  WorkerOutputs(EventLoop& loop, const LaunchOptions& options,
                std::function<absl::StatusOr<Pipe>()> make_terminal = &tools::make_terminal);
  ~WorkerOutputs();

  // Makes the log directory if any worker needs it. Unavailable if that cannot be done.
  absl::Status prepare(const std::string& run_id);
  // The streams of one worker, with their files and pumps. Give them to the worker and drop them: while the
  // launcher has them too their end is not seen.
  absl::StatusOr<WorkerStreams> open(int64_t round, int local_rank);

  // The launcher's own word to the user: one line, prefixed with "launch: ", not mixed into a worker's teed
  // line.
  void say(absl::string_view text);
  // Whole lines without the prefix.
  void say_lines(absl::string_view lines);

  // Where a worker may leave what it dies of. Empty where nothing can be written: then its last words are in
  // its output alone.
  std::string error_file(int64_t round, int local_rank) const;

  const std::string& directory() const { return directory_; }
  bool pumps_open() const;
  // Takes what is in the pipes and closes them: of the rounds so far.
  void close_pumps();
  // Whether everything that is to appear has been written.
  bool flushed() const;

 private:
  struct Stream {
    int64_t round;
    int local_rank;
    StreamRoute route;
    bool is_error;
  };

  // Of one worker. Unavailable if it cannot be made.
  absl::StatusOr<std::string> make_directory(int64_t round, int local_rank) const;
  absl::StatusOr<Descriptor> open_stream(const Stream& stream, bool& terminal);
  absl::StatusOr<Descriptor> open_file(const Stream& stream);
  // Not valid: a pseudo terminal is not wanted for it, or cannot be made.
  Descriptor open_terminal(const Stream& stream, Descriptor& file);
  void pump(const Stream& stream, Descriptor source, Descriptor file);
  OutputSink& sink(bool is_error) { return is_error && error_sink_ ? *error_sink_ : output_sink_; }

  EventLoop& loop_;
  const LaunchOptions& options_;
  const std::function<absl::StatusOr<Pipe>()> make_terminal_;
  bool warned_ = false;  // that no pseudo terminal can be made
  std::string directory_;
  bool temporary_ = false;  // directory_ is this object's own
  OutputSink output_sink_;
  // None when standard output and error are the same pipe: one sink then keeps their lines whole.
  std::unique_ptr<OutputSink> error_sink_;
  std::vector<std::unique_ptr<StreamPump>> pumps_;
};

}  // namespace gradwire::tools
