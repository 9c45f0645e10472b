#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::data_parallel {

// Averages the parameters of the replicas in some of the training steps. It follows ModelAverager of
// torch.distributed.algorithms.model_averaging. All ranks must call average_parameters() in each step. Used
// by one thread.
class ModelAverager {
 public:
  virtual ~ModelAverager() = default;
  // Counts a step, and averages the parameters if it is the step's turn. Parameters without a gradient are
  // left alone; they must be the same ones on all ranks. Throws the group's errors.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  // Number of steps so far. A checkpoint keeps it.
  int64_t step() const { return step_; }
  // Sets the number of steps. Throws Error with InvalidArgument if it is negative.
  void set_step(int64_t step);

 protected:
  // The group that averages in this step; nullptr: none.
  virtual collectives::ProcessGroup* group_of(int64_t step) = 0;

 private:
  int64_t step_ = 0;
};

// Averages over one group in every `period`-th step.
class PeriodicModelAverager : public ModelAverager {
 public:
  // The first average is in step `warmup_steps`, counted from 0. Throws Error with InvalidArgument if period
  // is not positive, or warmup_steps is negative, or there is no group.
  PeriodicModelAverager(std::shared_ptr<collectives::ProcessGroup> group, int64_t period,
                        int64_t warmup_steps = 0);

 protected:
  collectives::ProcessGroup* group_of(int64_t step) override;

 private:
  const std::shared_ptr<collectives::ProcessGroup> group_;
  const int64_t period_;
  const int64_t warmup_steps_;
};

// Averages over small groups often and over large ones seldom.
class HierarchicalModelAverager : public ModelAverager {
 public:
  // `period_group_sizes`: the number of ranks that average in every period-th step, by period. A larger
  // period must not have a smaller number, and the last group has all ranks of `world`. In a step that
  // several periods divide, the largest group averages. It makes the groups, so every rank of the world must
  // call it. Throws Error with InvalidArgument for numbers that do not fit together.
  HierarchicalModelAverager(std::shared_ptr<collectives::ProcessGroup> world,
                            const std::map<int64_t, int>& period_group_sizes, int64_t warmup_steps = 0);

 protected:
  collectives::ProcessGroup* group_of(int64_t step) override;

 private:
  std::map<int64_t, std::shared_ptr<collectives::ProcessGroup>> groups_;
  const int64_t warmup_steps_;
};

// Replaces each tensor by its average over the group; one message for each dtype. Throws the group's errors.
void average_tensors(collectives::ProcessGroup& group, const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::average_tensors;
using data_parallel::HierarchicalModelAverager;
using data_parallel::ModelAverager;
using data_parallel::PeriodicModelAverager;
}  // namespace gradwire::collectives
