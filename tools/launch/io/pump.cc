#include "gradwire/tools/launch/io/pump.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// More bytes than a pipe or a pseudo terminal can hold.
constexpr size_t kMaxBytesAtClose = 1 << 20;

}  // namespace

StreamPump::StreamPump(FdLoop& loop, Descriptor pipe, Targets targets)
    : loop_(loop), pipe_(std::move(pipe)), targets_(std::move(targets)) {
  // Only the launcher's end is made non-blocking. The worker's end keeps the mode that the worker expects.
  fcntl(pipe_.get(), F_SETFL, fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
  start_reading();
}

void StreamPump::start_reading() {
  const absl::Status added = loop_.add(pipe_.get(), EPOLLIN, [this](uint32_t) { read_some(); });
  if (!added.ok()) log(LogLevel::kError, "cannot read a worker's output, it is lost: ", added.message());
}

StreamPump::~StreamPump() { close(); }

void StreamPump::resume() {
  if (!open() || !paused_) return;
  paused_ = false;
  start_reading();
}

// Back pressure: while the sink is full the pump does not read, so the worker blocks in write(), as it would
// with a slow terminal. resume() continues when the sink has room. Reads at most one buffer for each event,
// so that one noisy worker does not delay the others.
void StreamPump::read_some() {
  if (targets_.sink != nullptr && targets_.sink->full()) {
    paused_ = true;
    // Remove the descriptor: epoll always reports a hang-up, which would wake the loop all the time.
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

// A log file that cannot be written, for example on a full disk, must not end the job: it is closed, and the
// error is logged once.
void StreamPump::take(absl::string_view bytes) {
  if (targets_.file.valid() && !write_all(targets_.file.get(), bytes)) {
    log(LogLevel::kError,
        "a worker's log file is incomplete: ", errno_status("cannot write", errno).message());
    targets_.file.reset();
  }
  if (targets_.sink == nullptr) return;
  std::string lines;
  targets_.lines.feed(bytes, lines);
  targets_.sink->append(lines);
}

void StreamPump::close() {
  char buffer[1 << 16];
  // Bounded, because a process may go on writing to the pipe.
  for (size_t taken = 0; open() && taken < kMaxBytesAtClose;) {
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
