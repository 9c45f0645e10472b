#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/threads/futex.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/suites/floors.h"

namespace gradwire::bench {
namespace {

// One cache line per direction.
struct Page {
  alignas(64) std::atomic<uint32_t> request;
  alignas(64) std::atomic<uint32_t> reply;
  // 1 while the client runs. The server spins only during that time.
  alignas(64) std::atomic<uint32_t> active;
};

constexpr int kPollsBeforeYield = 1000;

// Waits until `word` differs from `seen`, and returns its value. Spins while `active` is set; sleeps on the
// futex if it is not set or is nullptr.
uint32_t await_change(std::atomic<uint32_t>& word, uint32_t seen, const std::atomic<uint32_t>* active) {
  for (int polls = 0;; ++polls) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != seen) return now;
    if (active == nullptr || active->load(std::memory_order_relaxed) == 0) {
      futex_wait(word, seen, absl::InfiniteDuration());
    } else if (polls < kPollsBeforeYield) {
      cpu_relax();
    } else {
      // Yield: the other process may be waiting for this core.
      sched_yield();
    }
  }
}

class SharedPage final : public BenchProcess {
 public:
  explicit SharedPage(bool spin) : spin_(spin) {}

  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    const int fd = memfd_create("bench_page", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Page)) != 0) {
      throw std::runtime_error(absl::StrCat("cannot create the shared page: ", std::strerror(errno)));
    }
    map(fd);
    // The thread ends with the process.
    std::thread([this] { serve(); }).detach();
    return absl::StrCat("/proc/", getpid(), "/fd/", fd);
  }

  void join(const Endpoint& endpoint) override {
    if (page_ != nullptr) return;
    const int fd = open(endpoint.addresses.at(0).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      throw std::runtime_error(
          absl::StrCat("cannot open the shared page ", endpoint.addresses[0], ": ", std::strerror(errno)));
    }
    map(fd);
    close(fd);
  }

  Measurement run(const Task& task) override {
    const bool cold = task.case_name == "add2_cold";
    page_->active.store(spin_ && !cold ? 1 : 0, std::memory_order_relaxed);
    const auto nothing = [](int64_t) {};
    Measurement result = measure(
        {.seconds = task.seconds, .idle_us = cold ? 10'000 : 0}, nothing,
        [&](int64_t) {
          const uint32_t seen = page_->reply.load(std::memory_order_relaxed);
          page_->request.fetch_add(1, std::memory_order_release);
          // In a new round the server sleeps on the futex at first, so wake it.
          if (!spin_ || !awake_) futex_wake_all(page_->request);
          awake_ = spin_;
          await_change(page_->reply, seen, spin_ ? &page_->active : nullptr);
        },
        nothing);
    page_->active.store(0, std::memory_order_relaxed);
    awake_ = false;
    return result;
  }

 private:
  void map(int fd) {
    void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
      throw std::runtime_error(absl::StrCat("cannot map the shared page: ", std::strerror(errno)));
    }
    page_ = static_cast<Page*>(memory);
  }

  [[noreturn]] void serve() {
    uint32_t seen = 0;
    for (;;) {
      seen = await_change(page_->request, seen, spin_ ? &page_->active : nullptr);
      page_->reply.store(seen, std::memory_order_release);
      if (!spin_) futex_wake_all(page_->reply);
    }
  }

  const bool spin_;
  bool awake_ = false;
  Page* page_ = nullptr;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_futex() { return std::make_unique<SharedPage>(false); }
std::unique_ptr<BenchProcess> make_floor_spin() { return std::make_unique<SharedPage>(true); }

}  // namespace gradwire::bench
