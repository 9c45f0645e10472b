#include "tools/launch/pump.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace gradwire::tools {

StreamPump::StreamPump(EventLoop& loop, Fd pipe, Fd file, std::string prefix, OutputSink& sink)
    : loop_(loop), pipe_(std::move(pipe)), file_(std::move(file)), prefixer_(std::move(prefix)), sink_(sink) {
  // The reader's end alone is non-blocking; the worker's own end keeps the mode it expects.
  fcntl(pipe_.get(), F_SETFL, fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
  listen();
}

void StreamPump::listen() {
  const absl::Status added = loop_.add(pipe_.get(), EPOLLIN, [this](uint32_t) { read_some(); });
  if (!added.ok()) log(LogLevel::kError, "a worker's output is lost: ", added.message());
}

StreamPump::~StreamPump() { close(); }

void StreamPump::resume() {
  if (!open() || !paused_) return;
  paused_ = false;
  listen();
}

void StreamPump::read_some() {
  if (sink_.full()) {
    paused_ = true;
    // Removed, since a hang-up, which cannot be left out of what is waited for, would wake the loop without
    // end.
    loop_.remove(pipe_.get());
    return;
  }
  char buffer[1 << 16];
  const ssize_t got = read_retrying(pipe_.get(), buffer, sizeof(buffer));
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    finish();
    return;
  }
  if (file_.valid() && !write_all(file_.get(), buffer, got)) {
    log(LogLevel::kError,
        "a worker's log file ends here: ", errno_status("cannot write it", errno).message());
    file_.reset();
  }
  std::string lines;
  prefixer_.feed(absl::string_view(buffer, got), lines);
  sink_.append(lines);
}

void StreamPump::close() {
  int waiting = 0;
  if (open() && ioctl(pipe_.get(), FIONREAD, &waiting) == 0) {
    // Bounded by what is there now, whoever goes on writing.
    char buffer[1 << 16];
    std::string lines;
    while (waiting > 0) {
      const ssize_t got = read_retrying(pipe_.get(), buffer, std::min<size_t>(sizeof(buffer), waiting));
      if (got <= 0) break;
      if (file_.valid()) write_all(file_.get(), buffer, got);
      prefixer_.feed(absl::string_view(buffer, got), lines);
      waiting -= static_cast<int>(got);
    }
    sink_.append(lines);
  }
  finish();
}

void StreamPump::finish() {
  if (!open()) return;
  std::string lines;
  prefixer_.finish(lines);
  sink_.append(lines);
  loop_.remove(pipe_.get());
  pipe_.reset();
  file_.reset();
}

}  // namespace gradwire::tools
