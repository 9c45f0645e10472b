#pragma once

#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/io/lines.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/io/sink.h"

namespace gradwire::tools {

// Carries one stream of one worker from its pipe or pseudo terminal into its log file, byte for byte, and
// line by line into a sink.
//
// States: open; closed, when every writer of the pipe has gone or close() was called. On the loop's thread.
// Owns the pipe's end and the file; loop and sink outlive it.
class StreamPump {
 public:
  struct Targets {
    Descriptor file;                                  // not valid: no file
    OutputSink* sink = nullptr;                       // nullptr: no sink
    LinePrefixer lines = LinePrefixer::passing_on();  // for the sink
  };
  StreamPump(EventLoop& loop, Descriptor pipe, Targets targets);
  ~StreamPump();
  StreamPump(const StreamPump&) = delete;
  StreamPump& operator=(const StreamPump&) = delete;

  bool open() const { return pipe_.valid(); }
  // Reads on after the sink was full.
  void resume();
  // Takes what is in the pipe at this moment and reads no further: another process may hold the pipe
  // indefinitely.
  void close();

 private:
  void listen();
  void read_some();
  void take(absl::string_view bytes);
  void finish();

  EventLoop& loop_;
  Descriptor pipe_;
  Targets targets_;
  bool paused_ = false;
};

}  // namespace gradwire::tools
