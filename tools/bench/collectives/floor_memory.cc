#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gradwire/tools/bench/collectives/collective_member.h"

namespace gradwire::bench {
namespace {

// Returns the number of bytes that all ranks together must copy at least. Every rank's input is read once,
// and every result is written once. Reading and writing n bytes in total counts as a copy of n / 2 bytes.
int64_t copied_bytes(const collective_work& work) {
  const int64_t bytes = work.floats * 4;
  const int64_t n = work.ranks;
  switch (work.operation) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_SEND_RECV:
      return n * bytes;
    case COLLECTIVE_BROADCAST:
      return n * bytes / 2;
    case COLLECTIVE_REDUCE:
      return (n + 1) * bytes / 2;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
      return (n * n + n) * bytes / 2;
    case COLLECTIVE_ALL_TO_ALL:
      return n * n * bytes;
    default:
      return 0;
  }
}

// Copies from warm memory to warm memory, with one thread per rank, but at most one per core.
class FloorMemory final : public BenchProcess {
 public:
  Measurement run(const Task& task) override {
    collective_work work = {};
    if (collective_parse(task.case_name.c_str(), &work) == 0) {
      throw std::invalid_argument("floor_memory cannot run the case " + task.case_name);
    }
    // A barrier copies no data.
    if (work.operation == COLLECTIVE_BARRIER) return {};
    const int threads =
        std::max(1, std::min<int>(work.ranks, static_cast<int>(std::thread::hardware_concurrency())));
    const auto share = static_cast<std::size_t>(std::max<int64_t>(1, copied_bytes(work) / threads));
    std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(share, 1));
    std::vector<std::vector<char>> into(static_cast<std::size_t>(threads), std::vector<char>(share, 2));
    std::vector<uint64_t> page(COLLECTIVE_PAGE_BYTES / sizeof(uint64_t), 0);

    Measurement measured;
    measured.micros.reserve(1 << 16);
    std::atomic<bool> last = false;
    const int64_t end = collective_nanoseconds() + static_cast<int64_t>(task.seconds * 1e9);
    const auto copy = [&](int thread) {
      collective_sync sync = {page.data(), 0};
      for (int round = 0;; ++round) {
        if (thread == 0)
          last = round > 4 && (collective_nanoseconds() >= end || measured.micros.size() >= 1'000'000);
        collective_barrier_wait(&sync, thread, threads);
        if (last) return;
        const int64_t start = collective_nanoseconds();
        std::memcpy(into[static_cast<std::size_t>(thread)].data(),
                    from[static_cast<std::size_t>(thread)].data(), share);
        collective_barrier_wait(&sync, thread, threads);
        if (thread == 0 && round > 1) {
          measured.micros.push_back(static_cast<float>(collective_nanoseconds() - start) / 1000);
        }
      }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(copy, thread);
    copy(0);
    for (std::thread& other : others) other.join();
    measured.calls = static_cast<int64_t>(measured.micros.size());
    measured.timed_calls = measured.calls;
    return measured;
  }
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_memory() { return std::make_unique<FloorMemory>(); }

}  // namespace gradwire::bench
