#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/arrangement/cap_tuner.h"
#include "gradwire/data_parallel/buckets/gradient_buckets.h"

namespace gradwire::data_parallel {

// Decides between passes which parameters share a bucket. All ranks must have the same buckets, so each
// decision is a collective, at a point that follows from the number of passes alone.
//
// 1. The first pass has buckets in the reverse order of the parameters. It shows in which order the gradients
//    are really ready. This order differs a little between the ranks, so all of them adopt that of rank 0.
// 2. If the user has given no cap, the next passes try several caps (CapTuner). Then the ranks exchange their
//    times, and use the cap that is best for the slowest rank.
//
// Not thread-safe.
class BucketArrangement {
 public:
  // `tunes`: whether it tries caps, instead of caps.others. The clock must outlive this object.
  BucketArrangement(std::shared_ptr<collectives::ProcessGroup> group, const BucketCaps& caps, bool tunes,
                    const Clock& clock);

  // A pass begins. A rank that contributes only zeros (Join) does not call it; the pass counts nevertheless.
  void pass_began() { began_ = clock_.now(); }
  // A pass has ended, in which the gradients were ready in this order.
  void pass_ended(const std::vector<std::size_t>& order);

  // Called by all ranks between passes. Returns whether it has arranged the buckets again. `may_tune`: false
  // if the buckets must stay as they are after step 1; the same on every rank. Throws the group's errors, and
  // Internal for a malformed message.
  bool before_pass(GradientBuckets& buckets, bool may_tune);

 private:
  void arrange(GradientBuckets& buckets, uint64_t cap);
  // Makes the tuner, if different caps would give different buckets.
  void start_trials(const GradientBuckets& buckets);
  // Exchanges the times and chooses.
  void end_trials(GradientBuckets& buckets);

  const std::shared_ptr<collectives::ProcessGroup> group_;
  const BucketCaps caps_;
  const Clock& clock_;
  // Whether trials may still start.
  bool tunes_;
  std::optional<absl::Time> began_;
  // The order of the first pass; that of rank 0 after step 1.
  std::vector<std::size_t> order_;
  bool arranged_ = false;
  // Exists during the trials.
  std::optional<CapTuner> tuner_;
};

}  // namespace gradwire::data_parallel
