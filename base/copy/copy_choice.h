#pragma once

#include <array>
#include <cstddef>

#include "absl/types/optional.h"
#include "gradwire/base/copy/copy_methods.h"
#include "gradwire/base/copy/recent_costs.h"

namespace gradwire {

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

}  // namespace gradwire
