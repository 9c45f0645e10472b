#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/io/loop.h"

namespace gradwire::tools {

// The launcher's standard output or error, where all teed lines go. Its reader may be slow or may have ended;
// the loop never blocks on it. Text that cannot be written yet is kept in memory. When it exceeds a bound,
// full() is true and the workers' pumps must pause. If the reader has ended, the text is dropped.
//
// Use on the loop's thread only. Does not own the descriptor, which must stay open. The loop must outlive the
// sink.
class OutputSink {
 public:
  OutputSink(FdLoop& loop, int fd);
  ~OutputSink();
  OutputSink(const OutputSink&) = delete;
  OutputSink& operator=(const OutputSink&) = delete;

  // Appends whole lines. They are not mixed with the lines of another append().
  void append(absl::string_view lines);

  bool full() const { return pending_.size() - written_ >= kFull; }
  bool empty() const { return pending_.size() == written_; }
  // Sets the callback that runs, on the loop's thread, when the sink was full and has room again.
  void on_room(std::function<void()> callback) { on_room_ = std::move(callback); }

 private:
  static constexpr size_t kFull = 1 << 20;

  void write_some();
  // Number of pending bytes in the next write.
  size_t next_piece() const;
  void wait_for_room(bool wait);

  FdLoop& loop_;
  const int fd_;
  bool plain_file_ = false;  // Always writable; written to directly.
  bool waiting_ = false;
  std::string pending_;
  size_t written_ = 0;  // Number of bytes of pending_ that have been written.
  std::function<void()> on_room_;
};

}  // namespace gradwire::tools
