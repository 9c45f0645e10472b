#include "gradwire/tools/launch/io/pump.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// More than a pipe or a pseudo terminal holds.
constexpr size_t kMostAtTheEnd = 1 << 20;

}  // namespace

StreamPump::StreamPump(EventLoop& loop, Descriptor pipe, Targets targets)
    : loop_(loop), pipe_(std::move(pipe)), targets_(std::move(targets)) {
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
  if (targets_.sink != nullptr && targets_.sink->full()) {
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
  take(absl::string_view(buffer, got));
}

void StreamPump::take(absl::string_view bytes) {
  if (targets_.file.valid() && !write_all(targets_.file.get(), bytes)) {
    log(LogLevel::kError,
        "a worker's log file ends here: ", errno_status("cannot write it", errno).message());
    targets_.file.reset();
  }
  if (targets_.sink == nullptr) return;
  std::string lines;
  targets_.lines.feed(bytes, lines);
  targets_.sink->append(lines);
}

void StreamPump::close() {
  char buffer[1 << 16];
  // Bounded, whoever goes on writing.
  for (size_t taken = 0; open() && taken < kMostAtTheEnd;) {
    const ssize_t got = read_retrying(pipe_.get(), buffer, sizeof(buffer));
    if (got <= 0) break;
    take(absl::string_view(buffer, got));
    taken += got;
  }
  finish();
}

void StreamPump::finish() {
  if (!open()) return;
  if (targets_.sink != nullptr) {
    std::string lines;
    targets_.lines.finish(lines);
    targets_.sink->append(lines);
  }
  loop_.remove(pipe_.get());
  pipe_.reset();
  targets_.file.reset();
}

}  // namespace gradwire::tools
