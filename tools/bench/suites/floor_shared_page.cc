#include <optional>

#include "gradwire/base/threads/futex.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"
#include "gradwire/tools/bench/suites/shared_block.h"

namespace gradwire::bench {
namespace {

class SharedPage final : public BenchProcess {
 public:
  explicit SharedPage(bool spin) : spin_(spin) {}

  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    std::string address;
    page_ = static_cast<HandOver*>(create_shared_block(sizeof(HandOver), address));
    server_.emplace(*page_, spin_, [this] { return !spin_; });
    return address;
  }

  void join(const Endpoint& endpoint) override {
    if (page_ != nullptr) return;
    page_ = static_cast<HandOver*>(open_shared_block(endpoint.addresses.at(0), sizeof(HandOver)));
  }

  Measurement run(const Task& task) override {
    const Timing timing = timing_of(task);
    page_->active.store(spin_ && timing.idle_us == 0 ? 1 : 0, std::memory_order_relaxed);
    const auto nothing = [](int64_t) {};
    Measurement result = measure(
        timing, nothing,
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
  const bool spin_;
  bool awake_ = false;
  HandOver* page_ = nullptr;
  std::optional<HandOverServer> server_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_futex() { return std::make_unique<SharedPage>(false); }
std::unique_ptr<BenchProcess> make_floor_spin() { return std::make_unique<SharedPage>(true); }

}  // namespace gradwire::bench
