#include "gradwire/tools/bench/suites/shared_block.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/base/threads/futex.h"

namespace gradwire::bench {
namespace {

[[noreturn]] void fail(const char* what, const std::string& address) {
  throw std::runtime_error(absl::StrCat("cannot ", what, " shared memory", address.empty() ? "" : " ",
                                        address, ": ", std::strerror(errno)));
}

void* map(int fd, std::size_t size, const std::string& address) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) fail("map", address);
  return memory;
}

}  // namespace

void* create_shared_block(std::size_t size, std::string& address) {
  const int fd = memfd_create("bench_block", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) fail("create", "");
  // The descriptor stays open, because the address refers to it.
  address = absl::StrCat("/proc/", getpid(), "/fd/", fd);
  return map(fd, size, address);
}

void* open_shared_block(const std::string& address, std::size_t size) {
  const int fd = open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("open", address);
  void* memory = map(fd, size, address);
  close(fd);
  return memory;
}

uint32_t await_change(std::atomic<uint32_t>& word, uint32_t seen, const std::atomic<uint32_t>* active,
                      int polls) {
  for (int polled = 0;; ++polled) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != seen) return now;
    if (active == nullptr || active->load(std::memory_order_relaxed) == 0) {
      futex_wait(word, seen, absl::InfiniteDuration());
    } else if (polled < polls) {
      cpu_relax();
    } else {
      // Yield: the other process may be waiting for this core.
      sched_yield();
    }
  }
}

HandOverServer::HandOverServer(HandOver& words, bool spins, std::function<bool()> serve, int polls)
    : words_(words),
      active_(spins ? &words.active : nullptr),
      serve_(std::move(serve)),
      polls_(polls),
      thread_([this] { run(); }) {}

HandOverServer::~HandOverServer() {
  stopping_.store(true, std::memory_order_relaxed);
  words_.request.fetch_add(1, std::memory_order_release);
  futex_wake_all(words_.request);
  thread_.join();
}

void HandOverServer::run() {
  for (uint32_t seen = 0;;) {
    seen = await_change(words_.request, seen, active_, polls_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const bool caller_sleeps = serve_();
    words_.reply.store(seen, std::memory_order_release);
    if (caller_sleeps) futex_wake_all(words_.reply);
  }
}

}  // namespace gradwire::bench
