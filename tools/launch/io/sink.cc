#include "gradwire/tools/launch/io/sink.h"

#include <limits.h>
#include <sys/epoll.h>

#include <algorithm>

#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {

OutputSink::OutputSink(FdLoop& loop, int fd) : loop_(loop), fd_(fd) {
  const absl::Status added = loop_.add(fd_, 0, [this](uint32_t) { write_some(); });
  plain_file_ = !added.ok();
  // Wait for it only while something is pending: a reader that has ended would wake the loop all the time.
  loop_.remove(fd_);
}

OutputSink::~OutputSink() { loop_.remove(fd_); }

void OutputSink::append(absl::string_view lines) {
  if (lines.empty()) return;
  if (plain_file_) {
    write_all(fd_, lines);
    return;
  }
  pending_.append(lines.data(), lines.size());
  wait_for_room(true);
}

// A ready pipe accepts PIPE_BUF bytes in one piece and without blocking. So the descriptor can stay in
// blocking mode; the mode is shared by all processes that have it open, including the workers.
size_t OutputSink::next_piece() const {
  const size_t size = std::min<size_t>(pending_.size() - written_, PIPE_BUF);
  const size_t newline = absl::string_view(pending_).substr(written_, size).rfind('\n');
  return newline == absl::string_view::npos ? size : newline + 1;
}

// One write for each event. If the reader has ended, the pending text is dropped. The written text is erased
// only when all is written or a large part is: erasing it each time would move the whole rest each time.
void OutputSink::write_some() {
  const bool was_full = full();
  const ssize_t put = empty() ? 0 : write_retrying(fd_, pending_.data() + written_, next_piece());
  if (put < 0) {
    written_ = pending_.size();
  } else {
    written_ += put;
  }
  if (written_ == pending_.size() || written_ > kFull) {
    pending_.erase(0, written_);
    written_ = 0;
  }
  if (empty()) wait_for_room(false);
  if (was_full && !full() && on_room_) on_room_();
}

void OutputSink::wait_for_room(bool wait) {
  if (wait == waiting_) return;
  waiting_ = wait;
  if (!wait) {
    loop_.remove(fd_);
  } else if (!loop_.add(fd_, EPOLLOUT, [this](uint32_t) { write_some(); }).ok()) {
    // The loop cannot wait for this descriptor now, for example because memory is short. So write the text
    // here, even if that blocks. Otherwise it would stay pending, and the launcher would never end.
    waiting_ = false;
    write_all(fd_, absl::string_view(pending_).substr(written_));
    pending_.clear();
    written_ = 0;
  }
}

}  // namespace gradwire::tools
