#include "gradwire/tools/bench/calibration/copy_costs.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/copy/copy_choice.h"
#include "gradwire/tools/bench/report/statistics.h"
#include "gradwire/tools/bench/suites/pinning.h"
#include "gradwire/tools/bench/suites/shared_block.h"

namespace gradwire::bench {
namespace {

constexpr std::array<CopyMethod, kCopyMethods> kMethods = {CopyMethod::kMemcpy, CopyMethod::kString,
                                                           CopyMethod::kStream};
// One method and size: until the time is over, but with enough copies for a median.
constexpr int64_t kNanosecondsPerMethod = 15'000'000;
constexpr int kMinCopies = 5;
constexpr int kMaxCopies = 400;
// The copies in which the choice learns, and those after them that are counted.
constexpr int kLearning = 60;
constexpr int kCounted = 60;

// Memory whose pages are mapped.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : words_(bytes / sizeof(uint64_t), 1) {}
  void* data() { return words_.data(); }
  uint64_t sum() const { return absl::c_accumulate(words_, uint64_t{0}); }

 private:
  std::vector<uint64_t> words_;
};

// Copies for a reader that reads every byte of each copy before the next one begins.
class CopiesForReader {
 public:
  CopiesForReader(ReaderPlace place, std::size_t bytes, const std::vector<int>& cores)
      : bytes_(bytes), from_(bytes), to_(bytes) {
    pin_to({cores.at(0)});
    if (place == ReaderPlace::kSameCore) return;
    words_.active = 1;
    reader_ = std::make_unique<HandOverServer>(words_, true, [this, core = cores.at(1)] {
      if (!pinned_) pin_to({core});
      pinned_ = true;
      read();
      return false;
    });
  }

  struct Nanoseconds {
    int64_t copy = 0;
    int64_t read = 0;
  };
  Nanoseconds copy(CopyMethod method) {
    const int64_t begin = monotonic_nanoseconds();
    copy_with(method, to_.data(), from_.data(), bytes_);
    const int64_t copied = monotonic_nanoseconds() - begin;
    if (reader_ == nullptr) {
      read();
    } else {
      const uint32_t seen = words_.reply.load();
      words_.request.fetch_add(1);
      await_change(words_.reply, seen, &words_.active);
    }
    return {copied, read_nanoseconds_};
  }

 private:
  void read() {
    const int64_t begin = monotonic_nanoseconds();
    sum_ = to_.sum();
    read_nanoseconds_ = monotonic_nanoseconds() - begin;
  }

  const std::size_t bytes_;
  Buffer from_, to_;
  // Kept, so that the compiler cannot leave out the reading.
  volatile uint64_t sum_ = 0;
  int64_t read_nanoseconds_ = 0;
  bool pinned_ = false;
  HandOver words_ = {};
  std::unique_ptr<HandOverServer> reader_;
};

CopyCosts::Cost cost_of(CopiesForReader& copies, CopyMethod method) {
  std::vector<float> copy_us, read_us;
  const int64_t end = monotonic_nanoseconds() + kNanosecondsPerMethod;
  for (int i = 0; i < kMaxCopies && (i < kMinCopies || monotonic_nanoseconds() < end); ++i) {
    const auto [copy, read] = copies.copy(method);
    copy_us.push_back(static_cast<float>(copy) / 1000);
    read_us.push_back(static_cast<float>(read) / 1000);
  }
  return {percentile(copy_us, 0.5), percentile(read_us, 0.5)};
}

// Lets the choice order copies, as a connection does.
void find_choice(CopiesForReader& copies, CopyCosts& result) {
  std::array<bool, kCopyMethods> usable;
  absl::c_transform(result.costs, usable.begin(), [](const auto& cost) { return cost.has_value(); });
  SizedCopyChoice choice(usable);
  std::array<int, kCopyMethods> ordered = {};
  for (int i = 0; i < kLearning + kCounted; ++i) {
    const CopyOrder order = choice.next(result.bytes);
    const int64_t nanoseconds = copies.copy(order.method).copy;
    if (order.timed) choice.record(order.method, result.bytes, nanoseconds);
    if (i >= kLearning) ++ordered[static_cast<std::size_t>(order.method)];
  }
  const auto most = absl::c_max_element(ordered);
  result.chosen = kMethods[static_cast<std::size_t>(most - ordered.begin())];
  result.chosen_part = static_cast<double>(*most) / kCounted;
}

std::string size_name(std::size_t bytes) {
  constexpr std::size_t kMib = std::size_t{1} << 20;
  return bytes < kMib ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes / kMib, " MiB");
}

}  // namespace

std::vector<CopyCosts> measure_copies(ReaderPlace place, const std::vector<std::size_t>& sizes) {
  const std::vector<int> cores = allowed_cores();
  if (place == ReaderPlace::kOtherCore && cores.size() < 2) return {};
  const absl::Cleanup unpin = [&] { pin_to(cores); };
  std::vector<CopyCosts> all;
  for (const std::size_t bytes : sizes) {
    CopiesForReader copies(place, bytes, cores);
    CopyCosts& result = all.emplace_back();
    result.bytes = bytes;
    for (const CopyMethod method : kMethods) {
      if (is_supported(method)) result.costs[static_cast<std::size_t>(method)] = cost_of(copies, method);
    }
    find_choice(copies, result);
  }
  return all;
}

std::string text_table(ReaderPlace place, const std::vector<CopyCosts>& costs) {
  std::string text = absl::StrCat("reader on ", place == ReaderPlace::kSameCore ? "the writer's" : "another",
                                  " core: microseconds to copy + to read\n");
  if (costs.empty()) return absl::StrCat(text, "  not measured: this process may run only on one core\n");
  absl::StrAppendFormat(&text, "  %8s", "");
  for (const CopyMethod method : kMethods) absl::StrAppendFormat(&text, "  %18s", to_string(method));
  absl::StrAppend(&text, "  chosen\n");
  for (const CopyCosts& row : costs) {
    absl::StrAppendFormat(&text, "  %8s", size_name(row.bytes));
    for (const auto& cost : row.costs) {
      absl::StrAppendFormat(
          &text, "  %18s",
          cost ? absl::StrFormat("%.1f + %.1f", cost->copy_us, cost->read_us) : std::string("not available"));
    }
    absl::StrAppendFormat(&text, "  %s (%.0f %%)\n", to_string(row.chosen), 100 * row.chosen_part);
  }
  return text;
}

std::string calibration_text() {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= std::size_t{16} << 20; bytes *= 4) {
    sizes.push_back(bytes);
  }
  std::string text;
  for (const ReaderPlace place : {ReaderPlace::kSameCore, ReaderPlace::kOtherCore}) {
    absl::StrAppend(&text, text_table(place, measure_copies(place, sizes)));
  }
  return text;
}

}  // namespace gradwire::bench
