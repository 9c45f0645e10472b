#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/threads/futex.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"
#include "gradwire/tools/bench/suites/pinning.h"
#include "gradwire/tools/bench/suites/shared_block.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

// The work of the callee for one request.
enum class Work : uint32_t {
  kEcho,      // Copy the request to the reply.
  kSum,       // Read every element of the request.
  kPull,      // Copy the parameters to the reply.
  kSubtract,  // Subtract the request from the parameters.
  kReset,     // Set the parameters to kInitial.
  kNothing,   // Only answer.
};

// About two milliseconds: while one process copies a large tensor, the other must not give its core away.
constexpr int kPolls = 100'000;

constexpr float kInitial = 0.5F;

// The memory that both processes map. Pages take memory only after they have been written.
struct Blocks {
  HandOver words;
  Work work;
  uint64_t bytes;
  double sum;
  // The core of both processes, which then sleep instead of spinning; -1: they run on any cores.
  int core;
  alignas(4096) char request[kMaxBytes];
  alignas(4096) char reply[kMaxBytes];
};

// Four floats, which the compiler adds with one instruction.
using Lanes = float __attribute__((vector_size(16)));

Lanes load(const float* data) {
  Lanes lanes;
  std::memcpy(&lanes, data, sizeof lanes);
  return lanes;
}

// `floats` must be a multiple of 4.
double sum_of(const float* data, std::size_t floats) {
  // Short blocks keep the error of the floats small. Eight sums do not wait for each other.
  constexpr std::size_t kBlock = 4096;
  double total = 0;
  for (std::size_t begin = 0; begin < floats; begin += kBlock) {
    const std::size_t end = std::min(floats, begin + kBlock);
    Lanes sums[8] = {};
    std::size_t i = begin;
    for (; i + 32 <= end; i += 32) {
      for (std::size_t n = 0; n < 8; ++n) sums[n] += load(data + i + 4 * n);
    }
    for (; i < end; i += 4) sums[0] += load(data + i);
    for (const Lanes& lanes : sums) {
      for (int n = 0; n < 4; ++n) total += static_cast<double>(lanes[n]);
    }
  }
  return total;
}

void subtract(std::vector<float>& from, const float* data) {
  for (std::size_t i = 0; i + 4 <= from.size(); i += 4) {
    const Lanes difference = load(from.data() + i) - load(data + i);
    std::memcpy(from.data() + i, &difference, sizeof difference);
  }
}

class Handoff final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    std::string address;
    blocks_ = static_cast<Blocks*>(create_shared_block(sizeof(Blocks), address));
    server_.emplace(
        blocks_->words, true, [this] { return serve(); }, kPolls);
    return address;
  }

  void join(const Endpoint& endpoint) override {
    if (blocks_ != nullptr) return;
    blocks_ = static_cast<Blocks*>(open_shared_block(endpoint.addresses.at(0), sizeof(Blocks)));
  }

  // Half of the time both processes spin, and half of the time they take turns on one core, where the tensor
  // stays in the same cache. The better median counts.
  Measurement run(const Task& task) override {
    const CaseName name = parse_case(task.case_name);
    bytes_ = static_cast<std::size_t>(name.bytes);
    if (bytes_ == 0 || bytes_ % 32 != 0 || bytes_ > kMaxBytes) {
      throw std::invalid_argument(absl::StrCat("floor_handoff cannot run the case ", task.case_name,
                                               ": its size must be a multiple of 32 and at most ", kMaxBytes,
                                               " bytes"));
    }
    source_.assign(bytes_ / sizeof(float), 0);
    timing_ = timing_of(task);
    timing_.seconds /= 2;
    blocks_->bytes = bytes_;
    Measurement apart = run_on(-1, name.operation);
    const std::vector<int> cores = allowed_cores();
    const absl::Cleanup unpin = [&] { pin_to(cores); };
    pin_to({cores.at(0)});
    Measurement together = run_on(cores[0], name.operation);
    const bool better = percentile(together.micros, 0.5) < percentile(apart.micros, 0.5);
    return better ? together : apart;
  }

 private:
  Measurement run_on(int core, const std::string& operation) {
    blocks_->core = core;
    spin_ = core < 0;
    // The callee must not spin after an error either.
    const absl::Cleanup stop = [this] { release_callee(); };
    wake_callee(Work::kReset);
    return run_operation(operation);
  }

  Measurement run_operation(const std::string& operation) {
    if (operation == "echo") return run_echo();
    if (operation == "push") return run_push();
    if (operation == "pull") return run_pull();
    if (operation == "push_pull") return run_push_pull();
    throw std::invalid_argument("floor_handoff cannot run the operation " + operation);
  }

  // As measure(). The callee spins only in the timed part: while the caller fills and checks, it would lose
  // its core to other programs.
  template <class Before, class Call, class After>
  Measurement measure_awake(Before before, Call call, After after) {
    return measure(
        timing_,
        [&](int64_t i) {
          before(i);
          wake_callee(Work::kNothing);
        },
        [&](int64_t) { call(); },
        [&](int64_t i) {
          release_callee();
          after(i);
        });
  }

  Measurement run_echo() {
    return measure_awake([&](int64_t i) { fill_pattern(source_.data(), bytes_, static_cast<uint64_t>(i)); },
                         [&] { send(Work::kEcho); },
                         [&](int64_t i) { check_pattern(blocks_->reply, bytes_, static_cast<uint64_t>(i)); });
  }

  Measurement run_push() {
    double want = 0;
    return measure_awake(
        [&](int64_t i) {
          want =
              fill_summands(source_.data(), static_cast<int64_t>(source_.size()), static_cast<uint64_t>(i));
        },
        [&] { send(Work::kSum); }, [&](int64_t) { check_sum(blocks_->sum, want); });
  }

  Measurement run_pull() {
    return measure_awake([](int64_t) {}, [&] { request(Work::kPull); },
                         [&](int64_t) { check_reply(kInitial); });
  }

  Measurement run_push_pull() {
    float want = kInitial;
    return measure_awake(
        [&](int64_t i) {
          // Use whole numbers with alternating signs, so that the parameters are exact.
          const float step = (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(1 + i / 2 % 5);
          for (float& value : source_) value = step;
          want -= step;
        },
        [&] {
          send(Work::kSubtract);
          request(Work::kPull);
        },
        [&](int64_t) { check_reply(want); });
  }

  // Copies the source into the shared block and hands it over.
  void send(Work work) {
    std::memcpy(blocks_->request, source_.data(), bytes_);
    request(work);
  }

  void request(Work work) {
    HandOver& words = blocks_->words;
    const uint32_t seen = words.reply.load(std::memory_order_relaxed);
    blocks_->work = work;
    words.request.fetch_add(1, std::memory_order_release);
    if (!spin_ || work == Work::kReset || work == Work::kNothing) futex_wake_all(words.request);
    await_change(words.reply, seen, spin_ ? &words.active : nullptr, kPolls);
  }

  // Makes the callee spin from now on, if it should, and waits until it does.
  void wake_callee(Work first) {
    blocks_->words.active.store(spin_ ? 1 : 0, std::memory_order_relaxed);
    request(first);
  }

  void release_callee() { blocks_->words.active.store(0, std::memory_order_relaxed); }

  void check_reply(float want) const {
    const auto* got = reinterpret_cast<const float*>(blocks_->reply);
    bool right = true;
    for (std::size_t i = 0; i < source_.size(); ++i) right &= got[i] == want;
    if (!right) throw std::runtime_error("floor_handoff received wrong parameters");
  }

  // Does the work of a request at the callee. Returns whether the caller sleeps.
  bool serve() {
    const auto* floats = reinterpret_cast<const float*>(blocks_->request);
    const std::size_t bytes = blocks_->bytes;
    switch (blocks_->work) {
      case Work::kEcho:
        std::memcpy(blocks_->reply, blocks_->request, bytes);
        break;
      case Work::kSum:
        blocks_->sum = sum_of(floats, bytes / sizeof(float));
        break;
      case Work::kPull:
        std::memcpy(blocks_->reply, parameters_.data(), bytes);
        break;
      case Work::kSubtract:
        subtract(parameters_, floats);
        break;
      case Work::kReset:
        parameters_.assign(bytes / sizeof(float), kInitial);
        pin_to(blocks_->core < 0 ? cores_ : std::vector<int>{blocks_->core});
        break;
      case Work::kNothing:
        break;
    }
    return blocks_->core >= 0;
  }

  Blocks* blocks_ = nullptr;
  std::vector<float> source_;
  std::size_t bytes_ = 0;
  Timing timing_;
  bool spin_ = true;
  // At the callee.
  const std::vector<int> cores_ = allowed_cores();
  std::vector<float> parameters_;
  std::optional<HandOverServer> server_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_handoff() { return std::make_unique<Handoff>(); }

}  // namespace gradwire::bench
