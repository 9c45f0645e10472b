#include "gradwire/base/flight/flight_record_signal.h"

#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire {
namespace {

// Writing the records takes locks and allocates memory, which a signal handler must not do: the signal may
// have interrupted a thread that holds such a lock. So a thread of its own writes them.
// The handler wakes the thread with a semaphore: sem_post is one of the few calls that are safe in a signal
// handler.
sem_t asked;
std::atomic<int> written{0};

void handle(int) {
  // The interrupted code may be about to read errno.
  const int before = errno;
  sem_post(&asked);
  errno = before;
}

[[noreturn]] void write_when_asked() {
  for (;;) {
    while (sem_wait(&asked) != 0) {
    }
    // Errors are logged.
    (void)dump_flight_records("flight record, requested by a signal");
    written.fetch_add(1);
  }
}

// The thread that writes. A forked child has a mutex of its own, and no thread until it starts one.
struct Writer {
  Mutex mutex;
  bool started ABSL_GUARDED_BY(mutex) = false;
};

// Does nothing if the thread exists already.
absl::Status start_writer() {
  static constinit PerProcess<Writer> in_process;
  Writer& writer = in_process.get();
  MutexLock lock(writer.mutex);
  if (writer.started) return absl::OkStatus();
  sem_init(&asked, 0, 0);
  // The thread starts with all signals blocked: the program's signals go to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::StatusOr<std::thread> thread = start_thread("flight-record", &write_when_asked);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  GRADWIRE_RETURN_IF_ERROR(thread.status());
  thread->detach();
  writer.started = true;
  return absl::OkStatus();
}

}  // namespace

absl::Status install_flight_record_signal(int signo) {
  GRADWIRE_RETURN_IF_ERROR(start_writer());
  struct sigaction action = {};
  action.sa_handler = &handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(signo, &action, nullptr) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("signal ", signo, " cannot be caught: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

int flight_records_written() { return written.load(); }

}  // namespace gradwire
