#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/io/loop.h"

namespace gradwire::tools {

// The launcher's standard output or error as the end of all teed lines. Whoever reads it may be slow or may
// have gone: the loop never blocks on it. What cannot be written waits in memory up to a bound, above which
// full() asks the workers' pumps to pause; when the reader is gone, what would go there is dropped.
//
// On the loop's thread. Does not own the descriptor, which must stay open; the loop outlives the sink.
class OutputSink {
 public:
  OutputSink(EventLoop& loop, int fd);
  ~OutputSink();
  OutputSink(const OutputSink&) = delete;
  OutputSink& operator=(const OutputSink&) = delete;

  // Whole lines: they are not mixed with those of another append.
  void append(absl::string_view lines);

  bool full() const { return pending_.size() - written_ >= kFull; }
  bool empty() const { return pending_.size() == written_; }
  // Called on the loop's thread when the sink was full and is so no more.
  void on_room(std::function<void()> callback) { on_room_ = std::move(callback); }

 private:
  static constexpr size_t kFull = 1 << 20;

  void write_some();
  // How much of what is pending goes into the next write.
  size_t next_piece() const;
  void wait_for_room(bool wait);

  EventLoop& loop_;
  const int fd_;
  bool plain_file_ = false;  // always ready
  bool waiting_ = false;
  std::string pending_;
  size_t written_ = 0;  // of pending_
  std::function<void()> on_room_;
};

}  // namespace gradwire::tools
