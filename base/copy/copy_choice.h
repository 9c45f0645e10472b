#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradwire/base/copy/copy_methods.h"

namespace gradwire {

// Chooses the method for copies of one size, by the time that earlier copies took. The fastest method depends
// on where the reader of the target runs, which changes while a program runs. So the other methods are tried
// again from time to time: rarely if they were slower each time, and at once if the chosen one has become
// slow. Pure, not thread-safe.
class CopyChoice {
 public:
  // `usable`: whether each method may be chosen; kMemcpy always may.
  explicit CopyChoice(const std::array<bool, kCopyMethods>& usable);

  // Returns the method for the next copy.
  CopyMethod next();
  // The copy with `method` took this long for each KiB.
  void record(CopyMethod method, double nanoseconds_per_kib);

  CopyMethod best() const { return best_; }

 private:
  struct Known {
    bool usable = false;
    int samples = 0;
    // A moving average.
    double cost = 0;
  };
  Known& at(CopyMethod method) { return known_[static_cast<std::size_t>(method)]; }
  void choose_best();

  std::array<Known, kCopyMethods> known_ = {};
  CopyMethod best_ = CopyMethod::kMemcpy;
  // The cost of the best method when it was chosen or confirmed.
  double usual_cost_ = 0;
  // Number of copies since the last trial of another method, and after how many the next one follows.
  int since_trial_ = 0;
  int trial_interval_;
  std::size_t last_tried_ = 0;
};

}  // namespace gradwire
