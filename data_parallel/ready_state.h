#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gradwire/data_parallel/bucket_plan.h"

namespace gradwire::collectives {

// Bookkeeping of the gradients that one backward pass has produced so far.
//
// Idle; started by start(); over when every bucket has been taken, and idle again after reset(). Not
// thread-safe.
class ReadyState {
 public:
  ReadyState(Buckets buckets, std::size_t parameters);

  bool started() const { return started_; }
  void start() { started_ = true; }

  // The parameter's gradient is there. False, and nothing happens, when it was in this pass already.
  // `by_gradient`: it takes its place in order(); false for one that gets none.
  bool mark(std::size_t parameter, bool by_gradient = true);

  // The next bucket whose reduction can start: complete, and after all before it, so that every rank starts
  // them in one order. Each is returned once.
  std::optional<std::size_t> take_complete();
  // How many were taken.
  std::size_t taken() const { return taken_; }
  bool all_taken() const { return taken_ == buckets_.size(); }

  // Parameters that were not marked.
  std::vector<std::size_t> missing() const;
  // All parameters, in the order in which their gradients came; those that had none at the end.
  std::vector<std::size_t> order() const;

  void reset();

 private:
  Buckets buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<bool> marked_;
  std::vector<std::size_t> left_;
  std::vector<std::size_t> order_;
  std::size_t taken_ = 0;
  bool started_ = false;
};

}  // namespace gradwire::collectives
