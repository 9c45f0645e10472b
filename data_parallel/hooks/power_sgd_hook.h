#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::data_parallel {

// Options of PowerSgdHook; they have the meaning of the arguments of torch's PowerSGDState.
struct PowerSgdOptions {
  // The ranks that average.
  std::shared_ptr<collectives::ProcessGroup> group;
  // The rank of the approximation. A larger one is more exact, and needs more communication.
  int64_t matrix_approximation_rank = 1;
  // The first passes, up to this number, average without compression. At least 2 with use_error_feedback or
  // warm_start, because the buckets change after the first pass.
  int64_t start_power_sgd_iter = 1000;
  // A gradient is compressed only if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  // Whether the part that the compression loses is added to the next gradient.
  bool use_error_feedback = true;
  // Whether each pass starts with the factors of the last one, instead of random ones.
  bool warm_start = true;
  // Added to the norm of each column before the division by it, for gradients that may be 0.
  double orthogonalization_epsilon = 0;
  // The random factors follow from this number; the same on every rank.
  uint32_t random_seed = 0;
  // Whether gradients of the same shape are multiplied in one batch.
  bool batch_tensors_with_same_shape = false;
  // Whether a bucket is compressed as one square matrix, as batched_powerSGD_hook does. Faster and less
  // exact.
  bool whole_bucket = false;
};

// Compresses each gradient matrix M to two factors P and Q with few columns, M = P Q^T, as in "PowerSGD:
// Practical Low-Rank Gradient Compression for Distributed Optimization" (Vogels et al., 2019), and averages
// the factors. It follows powerSGD_hook and batched_powerSGD_hook of torch.distributed, with the same numbers
// from the same seed. Gradients with one dimension, and small ones, are averaged without compression.
class PowerSgdHook : public CommHook {
 public:
  // Throws Error with InvalidArgument for options out of their range.
  explicit PowerSgdHook(PowerSgdOptions options);

  HookStep run(GradBucket& bucket) override;
  // The state includes the errors, the factors and the number of passes. load() expects the same options, and
  // a replica whose buckets are the same.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Number of passes so far.
  int64_t iteration() const { return iteration_; }
  // Number of elements of all compressed passes, before the compression.
  int64_t elements_before() const { return elements_before_; }
  // As elements_before(), after the compression.
  int64_t elements_after() const { return elements_after_; }

 private:
  // The matrices that are multiplied in one batch, and their factors.
  struct Batch {
    // [count, rows, columns]
    at::Tensor matrices;
    // The gradients that `matrices` copies; empty if it is a view of one gradient.
    std::vector<at::Tensor> originals;
    // Views of the memory of the bucket's factors: [count, rows, rank] and [count, columns, rank].
    at::Tensor p, q;
  };
  // One bucket in one pass.
  struct Compression;
  // The part of a bucket's state that stays between passes. Undefined tensors: nothing yet.
  struct Memory {
    at::Tensor error, p, q;
  };

  // Divides the bucket's gradients into those that are compressed and the others.
  void divide(const GradBucket& bucket, Compression& compression);
  void divide_whole(Compression& compression);
  // Makes the views for the factors, and the random or the last Q.
  void make_factors(Compression& compression, Memory& memory);
  HookStep after_p(const std::shared_ptr<Compression>& compression);
  HookStep after_q(const std::shared_ptr<Compression>& compression);
  // The next seed; the same sequence as numpy.random.RandomState(random_seed).randint(1000000000).
  uint64_t next_seed();

  const PowerSgdOptions options_;
  std::mt19937 seeds_;
  int64_t seeds_drawn_ = 0;
  std::map<std::size_t, Memory> memory_;
  int64_t iteration_ = 0;
  int64_t elements_before_ = 0;
  int64_t elements_after_ = 0;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::PowerSgdHook;
using data_parallel::PowerSgdOptions;
}  // namespace gradwire::collectives
