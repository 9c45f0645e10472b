#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/join/join_status.h"

namespace gradwire::data_parallel {

// Does the collectives of a step on a rank that has no more data, so that the other ranks do not wait for it.
class JoinHook {
 public:
  virtual ~JoinHook() = default;
  // Takes part in one step of the other ranks. Called once for each of their steps.
  virtual void shadow_step(const JoinStatus& status) = 0;
  // Called when no rank has data any more. `last`: the rank of the group that had data until the end; the
  // highest one if there are several.
  virtual void all_joined(int last) = 0;
};

// An object with collectives in each training step, for example a replica or an optimizer with sharded state.
class Joinable {
 public:
  virtual ~Joinable() = default;
  // The group of its collectives.
  virtual const std::shared_ptr<collectives::ProcessGroup>& join_group() const = 0;
  // The device of the tensors in its collectives. The messages of a join are there too, because the backend
  // of the group may serve only one kind of device.
  virtual at::Device join_device() const = 0;
  // Throws Error with InvalidArgument if a rank without data cannot do the steps of this object.
  virtual void check_join() const {}
  // The steps of a rank without data.
  virtual std::unique_ptr<JoinHook> join_hook() = 0;
  // The object calls notifier->before_step() before the collectives of each step; nullptr: it does not. Only
  // the first object of a join gets a notifier.
  virtual void set_join_notifier(JoinNotifier* notifier) = 0;
};

// Options of Join.
struct JoinOptions {
  // Whether gradients are divided by the group's size, or by the number of ranks that still have data. With
  // the first, the batches of the last steps count less; with the second, they count more.
  bool divide_by_initial_world_size = true;
  // Whether all ranks stop with an Error when the first one has no more data.
  bool throw_on_early_termination = false;
  // Whether ranks may have different numbers of batches. False: Join does nothing.
  bool enable = true;
};

// A scope in which the ranks of a group may run different numbers of training steps. A rank that leaves the
// scope (finish() or the destructor) has joined: it takes part in the other ranks' collectives until all have
// joined. Then the replicas get the parameters and buffers of a rank that has run the last step. It follows
// torch.distributed.algorithms.Join.
//
// All ranks of the group must make it, with the same options, between training steps. Each step of each rank
// exchanges one small message more. In a step, each replica runs forward once and backward once. Its module
// must have no collectives of its own in forward and backward, because a rank without data does not run them;
// SyncBatchNorm is refused. Used by one thread; not copyable.
//
//   {
//     Join join({&model, &optimizer});
//     for (const Batch& batch : batches) { ... }
//   }
class Join : private JoinNotifier {
 public:
  // `objects` must outlive the scope; their collectives run in this order. Throws Error with InvalidArgument
  // if `objects` is empty, if its objects have different groups, or if one of them is a module in training
  // that contains a SyncBatchNorm.
  explicit Join(std::vector<Joinable*> objects, const JoinOptions& options = {});
  // Calls finish(), unless an exception ends the scope: then the other ranks do not get this rank's help, and
  // fail when it leaves the group. May throw the errors of finish().
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Waits until all ranks have joined, and takes part in their steps. Later calls do nothing. Throws Error:
  // FailedPrecondition with throw_on_early_termination, if other ranks still have data; the group's errors.
  void finish();

 private:
  JoinStatus before_step(bool synchronizes) override;
  // The reduction of this tensor on the host over all ranks.
  at::Tensor reduced(const at::Tensor& mine, collectives::ReduceOp op) const;
  // One collective of all ranks.
  JoinStatus exchange(bool active, bool synchronizes);
  void check_early_termination(const JoinStatus& status) const;
  void leave();

  const std::vector<Joinable*> objects_;
  const JoinOptions options_;
  const std::shared_ptr<collectives::ProcessGroup> group_;
  const int exceptions_;
  bool finished_ = false;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::Join;
using data_parallel::Joinable;
using data_parallel::JoinHook;
using data_parallel::JoinOptions;
}  // namespace gradwire::collectives
