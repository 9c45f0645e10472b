#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gradwire/data_parallel/buckets/bucket_plan.h"

namespace gradwire::data_parallel {

// Records which gradients one backward pass has produced so far.
//
// States: idle; started after start(); complete when every bucket has been taken; idle again after reset().
// Not thread-safe.
class ReadyState {
 public:
  ReadyState(Buckets buckets, std::size_t parameters);

  bool started() const { return started_; }
  void start() { started_ = true; }

  // Marks a parameter whose gradient is ready. Returns false, without an effect, if it was already marked in
  // this pass. `by_gradient`: the parameter is added to order(); false for a parameter that gets no gradient
  // in this pass.
  bool mark(std::size_t parameter, bool by_gradient = true);

  // Returns the next bucket, if all its parameters are marked: its reduction can start. Buckets are returned
  // in their order, each once, so every rank starts the reductions in the same order.
  std::optional<std::size_t> take_complete();
  // Number of buckets that were taken.
  std::size_t taken() const { return taken_; }
  bool all_taken() const { return taken_ == buckets_.size(); }

  // The parameters that are not marked.
  std::vector<std::size_t> missing() const;
  // All parameters in the order in which their gradients were ready; parameters without a gradient are at the
  // end.
  std::vector<std::size_t> order() const;

  void reset();

 private:
  Buckets buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<bool> marked_;
  // For each bucket, the number of its parameters that are not marked.
  std::vector<std::size_t> unmarked_;
  std::vector<std::size_t> order_;
  std::size_t taken_ = 0;
  bool started_ = false;
};

}  // namespace gradwire::data_parallel
