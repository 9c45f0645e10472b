#pragma once

#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/io/lines.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/io/sink.h"

namespace gradwire::tools {

// Carries one output stream of one worker from its pipe or pseudo terminal into its log file, byte for byte,
// and into a sink, line by line.
//
// States: open; closed, when no process has the write end of the pipe any more or close() was called. Use on
// the loop's thread only. Owns the pipe's end and the file. Loop and sink must outlive the pump.
class StreamPump {
 public:
  struct Targets {
    Descriptor file;                                    // Not valid without a file.
    OutputSink* sink = nullptr;                         // Null without a sink.
    LinePrefixer lines = LinePrefixer::pass_through();  // For the sink.
  };
  StreamPump(FdLoop& loop, Descriptor pipe, Targets targets);
  ~StreamPump();
  StreamPump(const StreamPump&) = delete;
  StreamPump& operator=(const StreamPump&) = delete;

  bool open() const { return pipe_.valid(); }
  // Resumes reading after the sink was full.
  void resume();
  // Reads what is in the pipe now and closes it, because another process may hold the write end indefinitely.
  void close();

 private:
  void start_reading();
  void read_some();
  void take(absl::string_view bytes);
  void finish();

  FdLoop& loop_;
  Descriptor pipe_;
  Targets targets_;
  bool paused_ = false;
};

}  // namespace gradwire::tools
