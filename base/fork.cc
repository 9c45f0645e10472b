#include "gradwire/base/fork.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/safe_text.h"

namespace gradwire {

namespace internal {
constinit std::atomic<uint32_t> process_epoch{0};
}  // namespace internal

namespace {

constexpr int kBits = 64;
constexpr int kMaxDescriptors = 1 << 20;
// The processes of the last epochs.
constexpr std::size_t kProcesses = 64;

// Everything here is constant-initialised, because objects of other files may use it before main(), and is
// free of locks, because the child of a process with threads uses it.
constinit std::array<std::atomic<uint64_t>, kMaxDescriptors / kBits> owned{};
// The number of words of `owned` that may have a bit.
constinit std::atomic<int> used_words{0};
constinit std::array<std::atomic<pid_t>, kProcesses> processes{};

// Number of threads with a ForkDelay, and of threads in fork().
constinit std::atomic<int> delays{0};
constinit std::atomic<int> forks{0};
thread_local int own_delays = 0;

// This thread is in fork_with_objects().
thread_local bool keeps_objects = false;

}  // namespace

// The ProcessMutexes that exist.
struct ProcessMutexes {
  // Held during fork(), so that no other one is made.
  static constinit std::mutex mutex;
  static constinit ProcessMutex* first;

  static bool try_lock_all() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (ProcessMutex* each = first; each != nullptr; each = each->next_) {
      if (each->try_lock()) continue;
      unlock_before(each);
      return false;
    }
    return true;
  }
  // nullptr: all.
  static void unlock_before(const ProcessMutex* end) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (ProcessMutex* each = first; each != end; each = each->next_) each->unlock();
  }
  static void add(ProcessMutex& added) {
    const std::lock_guard<std::mutex> lock(mutex);
    added.previous_ = nullptr;
    added.next_ = first;
    if (first != nullptr) first->previous_ = &added;
    first = &added;
  }
  static void remove(const ProcessMutex& removed) {
    const std::lock_guard<std::mutex> lock(mutex);
    (removed.previous_ == nullptr ? first : removed.previous_->next_) = removed.next_;
    if (removed.next_ != nullptr) removed.next_->previous_ = removed.previous_;
  }
};

constinit std::mutex ProcessMutexes::mutex;
constinit ProcessMutex* ProcessMutexes::first = nullptr;

namespace {

// 1. Take all mutexes of the process. A thread may hold one while it waits for another, so this thread waits
//    for none while it holds some.
// 2. Wait for the threads that are making descriptors. They come last: a thread may make one while it holds a
//    mutex.
void before_fork() {
  ProcessMutexes::mutex.lock();
  while (!ProcessMutexes::try_lock_all()) ::sched_yield();
  forks.fetch_add(1);
  while (delays.load() > own_delays) ::sched_yield();
}

void after_fork_in_parent() {
  forks.fetch_sub(1);
  ProcessMutexes::unlock_before(nullptr);
  ProcessMutexes::mutex.unlock();
}

void after_fork_in_child() {
  delays.store(own_delays);
  forks.store(0);
  ProcessMutexes::unlock_before(nullptr);
  ProcessMutexes::mutex.unlock();
  if (keeps_objects) return;
  const uint32_t epoch = internal::process_epoch.load(std::memory_order_relaxed) + 1;
  processes[epoch % kProcesses].store(::getpid(), std::memory_order_relaxed);
  internal::process_epoch.store(epoch, std::memory_order_relaxed);
  const int words = used_words.load(std::memory_order_relaxed);
  for (int word = 0; word < words; ++word) {
    uint64_t bits = owned[static_cast<std::size_t>(word)].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) ::close(word * kBits + __builtin_ctzll(bits));
  }
}

[[maybe_unused]] const bool is_registered = [] {
  processes[0].store(::getpid(), std::memory_order_relaxed);
  return ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child) == 0;
}();

}  // namespace

absl::Status ProcessMark::refusal(absl::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(
      what, " belongs to process ", processes[epoch_ % kProcesses].load(std::memory_order_relaxed),
      ", of which this process is a fork: make one here, or call exec()"));
}

ProcessMutex::ProcessMutex() { ProcessMutexes::add(*this); }

ProcessMutex::~ProcessMutex() { ProcessMutexes::remove(*this); }

// Either this thread sees the fork, or the fork waits for this thread. A fork that waits for this thread
// already, because of an outer object, must not be waited for.
ForkDelay::ForkDelay() noexcept {
  while (true) {
    delays.fetch_add(1);
    if (forks.load() == 0 || own_delays > 0) break;
    delays.fetch_sub(1);
    while (forks.load() > 0) ::sched_yield();
  }
  ++own_delays;
}

ForkDelay::~ForkDelay() {
  --own_delays;
  delays.fetch_sub(1);
}

void own_descriptor(int fd) noexcept {
  if (fd < 0 || fd >= kMaxDescriptors) return;
  const int words = fd / kBits + 1;
  int used = used_words.load(std::memory_order_relaxed);
  while (used < words && !used_words.compare_exchange_weak(used, words, std::memory_order_relaxed)) {
  }
  owned[static_cast<std::size_t>(fd / kBits)].fetch_or(uint64_t{1} << (fd % kBits),
                                                       std::memory_order_relaxed);
}

void disown_descriptor(int fd) noexcept {
  if (fd < 0 || fd >= kMaxDescriptors) return;
  owned[static_cast<std::size_t>(fd / kBits)].fetch_and(~(uint64_t{1} << (fd % kBits)),
                                                        std::memory_order_relaxed);
}

pid_t fork_with_objects() {
  keeps_objects = true;
  const pid_t child = ::fork();
  keeps_objects = false;
  return child;
}

// Only what is safe in the child of a process with threads: no allocation, no lock, no destructor.
void end_forked_child(absl::string_view where) noexcept {
  SafeText<256> line;
  line.add("gradwire: a forked child returned to ").add(where.substr(0, 80));
  line.add(", which belongs to its parent: end the child by _exit() or exec()\n");
  (void)!::write(STDERR_FILENO, line.view().data(), line.view().size());
  ::_exit(1);
}

}  // namespace gradwire
