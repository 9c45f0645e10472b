#include "gradwire/data_parallel/hooks/power_sgd_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"
#include "gradwire/data_parallel/hooks/hook_archive.h"
#include "gradwire/data_parallel/hooks/orthogonalize.h"

namespace gradwire::data_parallel {

struct PowerSgdHook::Compression {
  std::size_t index = 0;
  at::Tensor buffer;
  // The buffer plus the error of the last pass, before the compression. Undefined without error feedback.
  at::Tensor input;
  // The part of the buffer that is one square matrix, filled up with zeros (whole_bucket).
  at::Tensor square;
  std::vector<Batch> batches;
  std::vector<at::Tensor> uncompressed;
  at::Tensor uncompressed_flat;
  at::Tensor p, q;
};

PowerSgdHook::PowerSgdHook(PowerSgdOptions options)
    : options_(std::move(options)), seeds_(options_.random_seed) {
  const auto refuse = [](auto&&... parts) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("PowerSgdHook: ", parts...)));
  };
  if (options_.group == nullptr) refuse("got no group, expected the group of the replica");
  if (options_.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank must be positive, got ", options_.matrix_approximation_rank);
  }
  const int64_t least = options_.use_error_feedback || options_.warm_start ? 2 : 0;
  if (options_.start_power_sgd_iter < least) {
    refuse("start_power_sgd_iter must be at least ", least, ", got ", options_.start_power_sgd_iter,
           "; the buckets change after the first pass, so errors and factors cannot be kept earlier");
  }
  if (!(options_.min_compression_rate > 0)) {
    refuse("min_compression_rate must be positive, got ", options_.min_compression_rate);
  }
  if (!(options_.orthogonalization_epsilon >= 0)) {
    refuse("orthogonalization_epsilon must not be negative, got ", options_.orthogonalization_epsilon);
  }
}

uint64_t PowerSgdHook::next_seed() {
  constexpr uint32_t kMask = (uint32_t{1} << 30) - 1, kEnd = 1000000000;
  while (true) {
    ++seeds_drawn_;
    const uint32_t drawn = static_cast<uint32_t>(seeds_()) & kMask;
    if (drawn < kEnd) return drawn;
  }
}

void PowerSgdHook::divide(const GradBucket& bucket, Compression& compression) {
  std::vector<at::Tensor> matrices;
  const std::vector<at::Tensor> flat = bucket.flat_gradients();
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const at::Tensor& parameter = bucket.parameters()[i];
    const int64_t elements = flat[i].numel();
    const int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
    const int64_t columns = rows == 0 ? 0 : elements / rows;
    const int64_t rank = std::min({rows, columns, options_.matrix_approximation_rank});
    const int64_t compressed = (rows + columns) * rank;
    elements_before_ += elements;
    // A layout whose memory does not begin with whole rows is not a matrix.
    const bool is_matrix =
        parameter.dim() > 0 && !(parameter.is_non_overlapping_and_dense() && parameter.stride(0) != columns);
    if (is_matrix &&
        static_cast<double>(compressed) * options_.min_compression_rate < static_cast<double>(elements)) {
      matrices.push_back(flat[i].view({rows, columns}));
      elements_after_ += compressed;
    } else {
      compression.uncompressed.push_back(flat[i]);
      elements_after_ += elements;
    }
  }
  // Matrices of equal shape follow one another, in the order of the first one of each shape.
  std::vector<std::vector<at::Tensor>> by_shape;
  for (const at::Tensor& matrix : matrices) {
    const auto same = std::find_if(by_shape.begin(), by_shape.end(),
                                   [&](const auto& group) { return group[0].sizes() == matrix.sizes(); });
    (same == by_shape.end() ? by_shape.emplace_back() : *same).push_back(matrix);
  }
  for (const std::vector<at::Tensor>& group : by_shape) {
    if (options_.batch_tensors_with_same_shape && group.size() > 1) {
      compression.batches.push_back({at::stack(group), group, {}, {}});
    } else {
      for (const at::Tensor& matrix : group) compression.batches.push_back({matrix.unsqueeze(0), {}, {}, {}});
    }
  }
}

void PowerSgdHook::divide_whole(Compression& compression) {
  const int64_t elements = compression.square.numel();
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(elements))));
  compression.batches.push_back({compression.square.view({1, side, side}), {}, {}, {}});
  elements_before_ += compression.buffer.numel();
  elements_after_ += 2 * side * std::min(side, options_.matrix_approximation_rank);
}

void PowerSgdHook::make_factors(Compression& compression, Memory& memory) {
  int64_t p_elements = 0, q_elements = 0;
  const auto rank_of = [this](const Batch& batch) {
    return std::min({batch.matrices.size(1), batch.matrices.size(2), options_.matrix_approximation_rank});
  };
  for (const Batch& batch : compression.batches) {
    p_elements += batch.matrices.size(0) * batch.matrices.size(1) * rank_of(batch);
    q_elements += batch.matrices.size(0) * batch.matrices.size(2) * rank_of(batch);
  }
  const bool random = !memory.q.defined() || memory.q.numel() != q_elements || !options_.warm_start;
  if (random) {
    memory.p = at::empty({p_elements}, compression.buffer.options());
    memory.q = at::empty({q_elements}, compression.buffer.options());
  }
  compression.p = memory.p;
  compression.q = memory.q;
  at::Generator generator;
  if (random) generator = at::detail::createCPUGenerator(next_seed());
  int64_t p_begin = 0, q_begin = 0;
  for (Batch& batch : compression.batches) {
    const int64_t count = batch.matrices.size(0), rank = rank_of(batch);
    const int64_t rows = batch.matrices.size(1), columns = batch.matrices.size(2);
    batch.p = memory.p.narrow(0, p_begin, count * rows * rank).view({count, rows, rank});
    batch.q = memory.q.narrow(0, q_begin, count * columns * rank).view({count, columns, rank});
    p_begin += batch.p.numel();
    q_begin += batch.q.numel();
    if (random) {
      batch.q.copy_(at::randn(batch.q.sizes(), generator, at::TensorOptions(batch.q.scalar_type())));
    }
    orthogonalize(batch.q, options_.orthogonalization_epsilon);
  }
}

// The steps of a bucket:
// 1. Add the error of the last pass, and divide the bucket into matrices and other gradients.
// 2. P = M Q. Sum the P of all ranks, and average the other gradients.
// 3. Make the columns of P orthonormal. Q = M^T P. Average the Q.
// 4. M = P Q^T. The difference is the error for the next pass.
HookStep PowerSgdHook::run(GradBucket& bucket) {
  collectives::ProcessGroup& group = *options_.group;
  if (iteration_ < options_.start_power_sgd_iter) {
    if (bucket.is_last()) ++iteration_;
    return mean_of(group, bucket.buffer());
  }
  const auto compression = std::make_shared<Compression>();
  compression->index = bucket.index();
  compression->buffer = bucket.buffer();
  Memory& memory = memory_[bucket.index()];
  // A loaded state is on the CPU.
  for (at::Tensor* each : {&memory.error, &memory.p, &memory.q}) {
    if (each->defined()) *each = each->to(compression->buffer.options());
  }
  if (options_.use_error_feedback) {
    if (memory.error.defined() && memory.error.numel() == compression->buffer.numel()) {
      compression->buffer.add_(memory.error);
    }
    compression->input = compression->buffer.clone();
  }
  if (options_.whole_bucket) {
    const int64_t elements = compression->buffer.numel();
    const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(elements))));
    compression->square = at::constant_pad_nd(compression->buffer, {0, side * side - elements});
    divide_whole(*compression);
  } else {
    divide(bucket, *compression);
  }
  make_factors(*compression, memory);
  if (bucket.is_last()) ++iteration_;

  for (Batch& batch : compression->batches) at::bmm_out(batch.p, batch.matrices, batch.q);
  std::vector<std::shared_ptr<collectives::Work>> works;
  if (!compression->uncompressed.empty()) {
    compression->uncompressed_flat = at::cat(compression->uncompressed);
    works.push_back(group.all_reduce_async(compression->uncompressed_flat));
  }
  if (compression->batches.empty()) {
    return HookStep::locally_after(std::move(works), [this, compression] { return after_q(compression); });
  }
  works.push_back(group.all_reduce_async(compression->p));
  return HookStep::after(std::move(works), [this, compression] { return after_p(compression); });
}

HookStep PowerSgdHook::after_p(const std::shared_ptr<Compression>& compression) {
  for (Batch& batch : compression->batches) {
    orthogonalize(batch.p, options_.orthogonalization_epsilon);
    at::bmm_out(batch.q, batch.matrices.transpose(1, 2), batch.p);
  }
  return HookStep::locally_after({options_.group->all_reduce_async(compression->q)},
                                 [this, compression] { return after_q(compression); });
}

HookStep PowerSgdHook::after_q(const std::shared_ptr<Compression>& compression) {
  const int64_t ranks = options_.group->size();
  if (compression->uncompressed_flat.defined()) {
    compression->uncompressed_flat.div_(ranks);
    int64_t begin = 0;
    for (const at::Tensor& gradient : compression->uncompressed) {
      gradient.copy_(compression->uncompressed_flat.narrow(0, begin, gradient.numel()));
      begin += gradient.numel();
    }
  }
  if (compression->q.defined()) compression->q.div_(ranks);
  for (Batch& batch : compression->batches) {
    at::bmm_out(batch.matrices, batch.p, batch.q.transpose(1, 2));
    for (std::size_t i = 0; i < batch.originals.size(); ++i) {
      batch.originals[i].copy_(batch.matrices[static_cast<int64_t>(i)]);
    }
  }
  if (compression->square.defined()) {
    compression->buffer.copy_(compression->square.narrow(0, 0, compression->buffer.numel()));
  }
  Memory& memory = memory_[compression->index];
  if (compression->input.defined()) memory.error = compression->input.sub_(compression->buffer);
  if (!options_.warm_start) memory.p = memory.q = at::Tensor();
  return HookStep(compression->buffer);
}

void PowerSgdHook::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "power_sgd.iteration", iteration_);
  write_number(archive, "power_sgd.seeds_drawn", seeds_drawn_);
  write_number(archive, "power_sgd.elements_before", elements_before_);
  write_number(archive, "power_sgd.elements_after", elements_after_);
  write_number(archive, "power_sgd.buckets", static_cast<int64_t>(memory_.size()));
  int64_t i = 0;
  for (const auto& [index, memory] : memory_) {
    const std::string key = absl::StrCat("power_sgd.", i++);
    write_number(archive, absl::StrCat(key, ".index"), static_cast<int64_t>(index));
    const auto write = [&](const char* name, const at::Tensor& tensor) {
      write_tensor(archive, absl::StrCat(key, name), tensor.defined() ? tensor : at::empty({0}));
    };
    write(".error", memory.error);
    write(".p", memory.p);
    write(".q", memory.q);
  }
}

void PowerSgdHook::load(torch::serialize::InputArchive& archive) {
  constexpr int64_t kMostDraws = int64_t{1} << 32, kMostBuckets = 1 << 20;
  const int64_t iteration = read_number(archive, "power_sgd.iteration");
  const int64_t drawn = read_number(archive, "power_sgd.seeds_drawn", 0, kMostDraws);
  const int64_t before = read_number(archive, "power_sgd.elements_before");
  const int64_t after = read_number(archive, "power_sgd.elements_after");
  const int64_t buckets = read_number(archive, "power_sgd.buckets", 0, kMostBuckets);
  std::map<std::size_t, Memory> memory;
  for (int64_t i = 0; i < buckets; ++i) {
    const std::string key = absl::StrCat("power_sgd.", i);
    const auto read = [&](const char* name) {
      at::Tensor tensor = read_tensor(archive, absl::StrCat(key, name));
      return tensor.numel() == 0 ? at::Tensor() : tensor;
    };
    Memory& each = memory[static_cast<std::size_t>(read_number(archive, absl::StrCat(key, ".index")))];
    each = {read(".error"), read(".p"), read(".q")};
  }
  memory_ = std::move(memory);
  iteration_ = iteration;
  elements_before_ = before;
  elements_after_ = after;
  seeds_.seed(options_.random_seed);
  seeds_.discard(static_cast<unsigned long long>(drawn));
  seeds_drawn_ = drawn;
}

}  // namespace gradwire::data_parallel
