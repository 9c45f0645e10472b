#pragma once

#include <memory>
#include <string>

#include "tools/launch/fd.h"
#include "tools/launch/lines.h"
#include "tools/launch/loop.h"
#include "tools/launch/sink.h"

namespace gradwire::tools {

// Carries one teed stream of one worker from its pipe into its log file, byte for byte, and line by line with
// a prefix into a sink.
//
// States: open; closed, when every writer of the pipe has gone or close() was called. On the loop's thread.
// Owns the pipe's end and the file; loop and sink outlive it.
class StreamPump {
 public:
  StreamPump(EventLoop& loop, Fd pipe, Fd file, std::string prefix, OutputSink& sink);
  ~StreamPump();
  StreamPump(const StreamPump&) = delete;
  StreamPump& operator=(const StreamPump&) = delete;

  bool open() const { return pipe_.valid(); }
  // Reads on after the sink was full.
  void resume();
  // Takes what is in the pipe at this moment and reads no further: another process may hold the pipe for
  // ever.
  void close();

 private:
  void listen();
  void read_some();
  void finish();

  EventLoop& loop_;
  Fd pipe_;
  Fd file_;
  LinePrefixer prefixer_;
  OutputSink& sink_;
  bool paused_ = false;
};

}  // namespace gradwire::tools
