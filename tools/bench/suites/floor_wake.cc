#include <sched.h>

#include <atomic>
#include <optional>
#include <vector>

#include "gradwire/base/threads/futex.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"
#include "gradwire/tools/bench/suites/pinning.h"
#include "gradwire/tools/bench/suites/shared_block.h"

namespace gradwire::bench {
namespace {

struct WakePage {
  HandOver words;
  // The core on which the callee waits for the next requests.
  alignas(64) std::atomic<int> core;
  // Whether the caller sleeps until the reply, instead of spinning.
  std::atomic<bool> caller_sleeps;
};

// The lower half of the members sleep until a member of the upper half wakes them for a call.
class Wake final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank >= endpoint.size / 2) return "";
    std::string address;
    page_ = static_cast<WakePage*>(create_shared_block(sizeof(WakePage), address));
    page_->core.store(allowed_cores().at(0));
    server_.emplace(page_->words, false, [this] { return serve(); });
    return address;
  }

  void join(const Endpoint& endpoint) override {
    if (page_ != nullptr) return;
    pair_ = static_cast<std::size_t>(endpoint.rank - endpoint.size / 2);
    page_ = static_cast<WakePage*>(open_shared_block(endpoint.addresses.at(pair_), sizeof(WakePage)));
  }

  // Half of the time the callee waits on the caller's own core, and half of the time on another one. The
  // better median counts.
  Measurement run(const Task& task) override {
    const std::vector<int> cores = allowed_cores();
    const int own = cores[pair_ % cores.size()];
    const int other = cores[(pair_ + 1) % cores.size()];
    Timing timing = timing_of(task);
    timing.seconds /= 2;
    pin_to({own});
    Measurement on_same = call_on(own, timing);
    std::vector<Figure> figures = {{"wake_same_core_us", percentile(on_same.micros, 0.5)}};
    Measurement best = std::move(on_same);
    if (other != own) {
      Measurement on_other = call_on(other, timing);
      figures.push_back({"wake_other_core_us", percentile(on_other.micros, 0.5)});
      if (figures[1].value < figures[0].value) best = std::move(on_other);
    }
    pin_to(cores);
    best.figures = std::move(figures);
    return best;
  }

 private:
  Measurement call_on(int core, const Timing& timing) {
    HandOver& words = page_->words;
    // The caller would keep a callee on its own core from running.
    const bool sleeps = sched_getcpu() == core;
    page_->core.store(core, std::memory_order_relaxed);
    page_->caller_sleeps.store(sleeps, std::memory_order_relaxed);
    words.active.store(1, std::memory_order_relaxed);
    const auto nothing = [](int64_t) {};
    return measure(
        timing, nothing,
        [&](int64_t) {
          const uint32_t seen = words.reply.load(std::memory_order_relaxed);
          words.request.fetch_add(1, std::memory_order_release);
          futex_wake_all(words.request);
          await_change(words.reply, seen, sleeps ? nullptr : &words.active);
        },
        nothing);
  }

  // Moves to the core that the caller wants: the calls of its warm-up do. Returns whether the caller sleeps.
  bool serve() {
    if (const int wanted = page_->core.load(std::memory_order_relaxed); wanted != served_on_) {
      served_on_ = wanted;
      pin_to({wanted});
    }
    return page_->caller_sleeps.load(std::memory_order_relaxed);
  }

  WakePage* page_ = nullptr;
  std::size_t pair_ = 0;
  // The core of the serving thread; -1: not chosen yet.
  int served_on_ = -1;
  std::optional<HandOverServer> server_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_wake() { return std::make_unique<Wake>(); }

}  // namespace gradwire::bench
