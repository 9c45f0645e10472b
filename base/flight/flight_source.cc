#include "gradwire/base/flight/flight_source.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/flight/trace_settings.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/write.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/safe_text.h"

namespace gradwire {
namespace {

constexpr std::pair<int, const char*> kSignals[] = {{SIGTERM, "the process was ended by SIGTERM"},
                                                    {SIGINT, "the process was ended by SIGINT"},
                                                    {SIGHUP, "the process was ended by SIGHUP"},
                                                    {SIGQUIT, "the process was ended by SIGQUIT"}};

// The signal has its default action again (SA_RESETHAND), and is blocked until this function returns.
void on_signal(int signo) {
  for (const auto& [number, reason] : kSignals) {
    if (number == signo) dump_flight_records_in_crash(reason);
  }
  raise(signo);
}

// Has the records of all sources written when the process ends. `at_exit` writes them at the end of main() or
// in exit(). SIGTERM, SIGINT, SIGHUP and SIGQUIT write them as a crash does, unless the program has handlers
// of its own for them; then the process ends by the signal, as it would without the handler. Call once.
void write_flight_records_at_end(void (*at_exit)()) {
  std::atexit(at_exit);
  for (const auto& [number, reason] : kSignals) {
    struct sigaction current {};
    if (sigaction(number, nullptr, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0 ||
        current.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_handler = &on_signal;
    ours.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(number, &ours, nullptr);
  }
}

}  // namespace

namespace {

constexpr std::size_t kMaxSources = 1024;
constexpr std::size_t kMaxPath = 4096;
// Lines of each kind in the log, and lines that a crash writes to standard error.
constexpr std::size_t kLogLines = 10;
constexpr int kCrashLines = 16;
constexpr char kSourceEnded[] = "the source of the records has ended";
constexpr char kProcessEnded[] = "the process has ended";

// The table of sources is read in two ways. An ordinary dump holds `mutex`, so no source detaches meanwhile.
// A crash must not lock:
//   1. The crash sets `crashing`, and then reads the table.
//   2. detach() removes its source, and then reads `crashing`. All four accesses are sequentially consistent,
//      so either the crash does not find the source, or detach() sees the crash.
//   3. A detach() that sees the crash waits, because the process is about to end.
struct Process {
  ProcessMutex mutex;
  std::array<std::atomic<const FlightSource*>, kMaxSources> sources{};
  std::atomic<bool> crashing{false};
  std::atomic<pid_t> owner{0};
  // Written once, before the first source is in the table.
  char directory[kMaxPath] = {};
  // Whether `directory` is that of a trace.
  bool traced = false;
};

Process& process() {
  static Process* instance = [] {
    auto* made = new Process;
    made->traced = trace_settings().on();
    const char* set = made->traced ? trace_settings().directory.c_str() : std::getenv("GRADWIRE_FLIGHT_DIR");
    if (set != nullptr && std::strlen(set) < kMaxPath) std::strcpy(made->directory, set);
    made->owner = getpid();
    return made;
  }();
  return *instance;
}

// Set by the first attach(), so that a signal handler need not make the object.
std::atomic<Process*> ready{nullptr};

absl::string_view directory_of(const FlightSource& source) {
  return process().traced || source.directory().empty() ? flight_directory() : source.directory();
}

class StringSink : public FlightSink {
 public:
  void line(absl::string_view json, bool /*open*/) override { absl::StrAppend(&text_, json, "\n"); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Collects lines on the stack of the handler, and writes them together.
class CrashSink : public FlightSink {
 public:
  explicit CrashSink(int fd) : fd_(fd) {}
  ~CrashSink() override { flush(); }
  void line(absl::string_view json, bool /*open*/) override {
    if (json.size() + 1 > sizeof(buffer_)) return;
    if (size_ + json.size() + 1 > sizeof(buffer_)) flush();
    std::memcpy(buffer_ + size_, json.data(), json.size());
    size_ += json.size();
    buffer_[size_++] = '\n';
  }

 private:
  void flush() {
    (void)write_all(fd_, {buffer_, size_});
    size_ = 0;
  }
  const int fd_;
  std::size_t size_ = 0;
  char buffer_[8192];
};

// Without a directory: only what has not ended.
class OpenLinesSink : public FlightSink {
 public:
  void line(absl::string_view json, bool open) override {
    if (!open || lines_++ >= kCrashLines) return;
    (void)write_all(STDERR_FILENO, "  flight: ");
    (void)write_all(STDERR_FILENO, json);
    (void)write_all(STDERR_FILENO, "\n");
  }

 private:
  int lines_ = 0;
};

// A new file: a link or a file of another user at this path is not written to.
int open_new(const char* path) {
  ::unlink(path);
  return ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void crash_dump(const FlightSource& source, absl::string_view reason) {
  const absl::string_view directory = directory_of(source);
  if (directory.empty()) {
    OpenLinesSink sink;
    source.write(sink, reason, FlightDump::kCrash);
    return;
  }
  SafeText<2 * kMaxPath> path;
  path.add(directory).add(absl::string_view("\0", 1));
  ::mkdir(path.view().data(), 0700);
  SafeText<2 * kMaxPath> file;
  file.add(directory).add("/").add(source.file_name()).add(".crash.jsonl").add(absl::string_view("\0", 1));
  const int fd = open_new(file.view().data());
  if (fd < 0) return;
  {
    CrashSink sink(fd);
    source.write(sink, reason, FlightDump::kCrash);
  }
  ::close(fd);
}

absl::Status make_directories(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    struct stat info {};
    if (::mkdir(part.c_str(), 0700) == 0 || (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)))
      continue;
    return system_status(absl::StrCat("cannot create the directory of flight records ", part), errno);
  }
  return absl::OkStatus();
}

// Written under another name first: a reader never finds half of a record.
absl::Status write_file(const std::string& directory, const std::string& name, const std::string& text) {
  GRADWIRE_RETURN_IF_ERROR(make_directories(directory));
  const std::string path = absl::StrCat(directory, "/", name, ".jsonl");
  const std::string partial = absl::StrCat(path, ".partial");
  const Descriptor fd(open_new(partial.c_str()));
  const bool written = fd.valid() && write_all(fd.get(), text);
  if (written && ::rename(partial.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  ::unlink(partial.c_str());
  return system_status(absl::StrCat("cannot write the flight record ", path), error);
}

absl::Status dump_locked(const FlightSource& source, absl::string_view reason,
                         LogLevel level = LogLevel::kWarning) {
  absl::Status status;
  const std::string directory(directory_of(source));
  if (!directory.empty()) {
    StringSink sink;
    source.write(sink, reason, FlightDump::kOrdinary);
    status = write_file(directory, std::string(source.file_name()), sink.text());
    if (status.ok()) {
      log(level, reason, "; flight record: ", directory, "/", source.file_name(), ".jsonl");
      return status;
    }
  }
  log_text(LogLevel::kWarning, absl::StrCat(reason, status.ok() ? "" : absl::StrCat("; ", status.message()),
                                            "; ", source.text(kLogLines)));
  return status;
}

void on_crash(absl::string_view reason) { dump_flight_records_in_crash(reason); }

// A forked child has the table of its parent, and must not write in its place. Errors are logged.
void on_exit() {
  Process& all = process();
  if (all.owner.load() != getpid()) return;
  MutexLock lock(all.mutex);
  for (const auto& place : all.sources) {
    if (const FlightSource* source = place.load()) (void)dump_locked(*source, kProcessEnded, LogLevel::kInfo);
  }
}

}  // namespace

absl::string_view flight_directory() { return process().directory; }

void FlightSource::attach() {
  Process& all = process();
  // The lines of a crash have it, and must find it read.
  (void)boot_id();
  if (ready.exchange(&all) == nullptr && all.traced) write_flight_records_at_end(&on_exit);
  set_crash_hook(&on_crash);
  for (auto& place : all.sources) {
    const FlightSource* none = nullptr;
    if (place.compare_exchange_strong(none, this)) return;
  }
}

void FlightSource::detach() {
  if (!mark_.here()) return;
  Process& all = process();
  {
    // A dump that reads this source holds the mutex.
    MutexLock lock(all.mutex);
    if (all.traced && all.owner.load() == getpid() && !all.crashing.load())
      (void)dump_locked(*this, kSourceEnded, LogLevel::kInfo);
    for (auto& place : all.sources) {
      const FlightSource* self = this;
      if (place.compare_exchange_strong(self, nullptr)) break;
    }
  }
  if (!all.crashing.load()) return;
  const timespec timeout{.tv_sec = 10, .tv_nsec = 0};
  nanosleep(&timeout, nullptr);
}

absl::Status dump_flight_record(const FlightSource& source, absl::string_view reason) {
  MutexLock lock(process().mutex);
  return dump_locked(source, reason);
}

absl::Status dump_flight_records(absl::string_view reason) {
  Process& all = process();
  absl::Status status;
  MutexLock lock(all.mutex);
  for (const auto& place : all.sources) {
    if (const FlightSource* source = place.load()) status.Update(dump_locked(*source, reason));
  }
  return status;
}

void dump_flight_records_in_crash(absl::string_view reason) {
  Process* const all = ready.load();
  if (all == nullptr || all->owner.load() != getpid() || all->crashing.exchange(true)) return;
  for (const auto& place : all->sources) {
    if (const FlightSource* source = place.load()) crash_dump(*source, reason);
  }
}

}  // namespace gradwire
