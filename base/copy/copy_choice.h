#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/optional.h"
#include "gradwire/base/copy/copy_methods.h"

namespace gradwire {

// The newest costs of one method, and the cost that is expected of it. Pure, not thread-safe.
//
// That is the mean without the largest cost. A copy that is interrupted, because the thread loses its core,
// takes a hundred times as long as the others. It would decide a moving average for a long time. A median
// would ignore it, too, but also a method that is slow in two of five copies, because the reader changes its
// core.
class RecentCosts {
 public:
  static constexpr std::size_t kKept = 5;

  void add(double cost) {
    costs_[next_] = static_cast<float>(cost);
    next_ = (next_ + 1) % kKept;
    count_ = std::min(count_ + 1, kKept);
  }
  void clear() { next_ = count_ = 0; }
  std::size_t count() const { return count_; }

  // REQUIRES: count() > 0
  double expected() const {
    float sum = 0, largest = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      sum += costs_[i];
      largest = std::max(largest, costs_[i]);
    }
    return count_ == 1 ? sum : (sum - largest) / static_cast<float>(count_ - 1);
  }

 private:
  std::array<float, kKept> costs_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

// How to make one copy.
struct CopyOrder {
  CopyMethod method = CopyMethod::kMemcpy;
  // Whether the cost of the copy must be recorded.
  bool timed = false;
};

// Chooses the method for copies of one size, by the costs of earlier copies. The best method depends on where
// the reader of the target runs, which changes while a program runs. So the other methods are tried again
// from time to time: rarely if they cost more each time, and at once if the chosen one has become slow.
// RecentCosts says how much a method costs.
//
//   const CopyOrder order = choice.next();
//   ... copy ...
//   if (order.timed) choice.record(order.method, cost);
//
// Threads may copy at the same time: any number of orders may follow before the cost of one is recorded.
// Pure, not thread-safe.
class CopyChoice {
 public:
  struct Options {
    // Whether each method may be chosen; kMemcpy always may.
    std::array<bool, kCopyMethods> usable = {true, false, false};
    // Copies with the chosen method from one that is timed to the next. To measure costs time, too.
    int copies_per_timed = 1;
  };
  explicit CopyChoice(const Options& options);

  CopyOrder next();
  // The unit of the cost does not matter, if it is always the same.
  void record(CopyMethod method, double cost);

  CopyMethod best() const { return best_; }

 private:
  struct Method {
    bool usable = false;
    RecentCosts costs;
  };
  Method& at(CopyMethod method) { return methods_[static_cast<std::size_t>(method)]; }
  // The method with the fewest costs, or nothing if no method has too few of them to choose.
  absl::optional<CopyMethod> least_known() const;
  void record_first(CopyMethod method, double cost);
  void record_best(double cost);
  void record_trial(double cost);
  void begin_trial();
  void choose(CopyMethod method);

  std::array<Method, kCopyMethods> methods_;
  // Number of usable methods except one.
  int others_ = -1;
  const int copies_per_timed_;
  // Every method has been measured often enough.
  bool all_known_ = false;
  CopyMethod best_ = CopyMethod::kMemcpy;
  // The cost of the best method when it was chosen or confirmed.
  double usual_cost_ = 0;
  // Numbers of copies with the best method: since one was timed, since the last trial of another method, and
  // after how many the next trial follows.
  int since_timed_ = 0;
  int since_trial_ = 0;
  int trial_interval_;
  // Trials that need not wait.
  int due_trials_ = 0;
  // The method on trial, and whether a copy with it has been ordered and not yet recorded.
  absl::optional<CopyMethod> trial_;
  bool ordered_ = false;
  std::size_t last_tried_ = 0;
};

// Chooses the method of copies that one other thread or process reads next, for each size class by itself.
//
// The reader's time counts too. It is not measured: the writer does not know how much of it is waiting.
// Ordinary stores leave the data in a cache. After streaming stores the reader fetches it from memory, and
// this is charged to them. So they are chosen where ordinary stores take much longer, because each line of
// the target must first be fetched from the core that read it last. Copies that do not fit into the caches of
// a core are charged nothing: their reader fetches most of them from memory, whatever the method.
//
// Pure, not thread-safe.
class SizedCopyChoice {
 public:
  // Shorter copies use memcpy and are not timed: to choose takes as long as they do.
  static constexpr std::size_t kMinBytes = std::size_t{2} << 10;

  // `usable`: as in CopyChoice::Options.
  explicit SizedCopyChoice(const std::array<bool, kCopyMethods>& usable);

  // As CopyChoice::next() and record(), for a copy of `bytes` bytes.
  CopyOrder next(std::size_t bytes);
  void record(CopyMethod method, std::size_t bytes, int64_t nanoseconds);

 private:
  // The sizes of a class differ by less than a factor of two, so their costs for each byte can be compared.
  // The last class has all sizes from 4 MiB on.
  static constexpr std::size_t kClasses = 12;
  static std::size_t class_of(std::size_t bytes);
  template <std::size_t... kClass>
  SizedCopyChoice(const std::array<bool, kCopyMethods>& usable, std::index_sequence<kClass...>);

  std::array<CopyChoice, kClasses> choices_;
};

}  // namespace gradwire
