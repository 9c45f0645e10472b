#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/group/agreement.h"
#include "gradwire/collectives/group/group_identity.h"
#include "gradwire/collectives/group/operations.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/queue/async_queue.h"
#include "gradwire/collectives/queue/turnstile.h"

namespace gradwire::collectives {

// What a group is made of, when all have come together.
struct GroupParts {
  ArgumentChecks::Group checks;
  std::string name;
  bool is_world = true;
  // CUDA tensors go through the host.
  bool stage_to_host = false;
  // As the world was asked for, with the timeout of this group.
  ProcessGroupOptions options;
  std::shared_ptr<store::Store> store;
  std::unique_ptr<GroupBackend> backend;
};

// One at a time goes through the turnstile, in the order of calls. Who calls a synchronous operation runs it himself;
// asynchronous ones are run by a thread of the group's, or enqueued on a device by their caller. The backend is used by
// whoever's turn it is, and by point-to-point operations, which hold on to it while they begin.
class ProcessGroupImpl final : public ProcessGroup {
 public:
  explicit ProcessGroupImpl(GroupParts parts);
  ~ProcessGroupImpl() override;

  int rank() const override { return identity_->rank; }
  int size() const override { return checks_.size(); }
  Backend backend() const override { return kind_; }
  const std::vector<int>& ranks() const override { return identity_->ranks; }
  const std::string& name() const override { return identity_->name; }
  absl::Duration timeout() const override { return options_.timeout; }
  std::shared_ptr<ProcessGroup> new_group(std::vector<int> ranks, const NewGroupOptions& options) override;

// A synchronous and an asynchronous operation of the same body, begin_NAME, which throws for a synchronous one.
#define GRADWIRE_OPERATION(name, parameters, ...)                                \
  void name parameters override { (void)begin_##name(Mode::kNow, __VA_ARGS__); } \
  WorkPtr name##_async parameters override { return begin_##name(Mode::kLater, __VA_ARGS__); }
  GRADWIRE_OPERATION(broadcast, (at::Tensor tensor, int src), std::move(tensor), src)
  GRADWIRE_OPERATION(reduce, (at::Tensor tensor, int dst, const Reduction& op), std::move(tensor), dst, op)
  GRADWIRE_OPERATION(all_reduce, (at::Tensor tensor, const Reduction& op), std::move(tensor), op)
  GRADWIRE_OPERATION(gather, (at::Tensor tensor, Tensors list, int dst), std::move(tensor), std::move(list),
                     dst)
  GRADWIRE_OPERATION(all_gather, (Tensors list, at::Tensor tensor), std::move(list), std::move(tensor))
  GRADWIRE_OPERATION(scatter, (at::Tensor tensor, Tensors list, int src), std::move(tensor), std::move(list),
                     src)
  GRADWIRE_OPERATION(reduce_scatter, (at::Tensor output, Tensors list, const Reduction& op),
                     std::move(output), std::move(list), op)
  GRADWIRE_OPERATION(all_to_all, (Tensors outputs, Tensors inputs), std::move(outputs), std::move(inputs))
  GRADWIRE_OPERATION(barrier, (const std::vector<int>& device_ids), device_ids)
  GRADWIRE_OPERATION(all_gather_into_tensor, (at::Tensor output, at::Tensor input), std::move(output),
                     std::move(input))
  GRADWIRE_OPERATION(reduce_scatter_tensor, (at::Tensor output, at::Tensor input, const Reduction& op),
                     std::move(output), std::move(input), op)
  GRADWIRE_OPERATION(all_to_all_single,
                     (at::Tensor output, at::Tensor input, const std::vector<int64_t>& output_splits,
                      const std::vector<int64_t>& input_splits),
                     std::move(output), std::move(input), output_splits, input_splits)
  GRADWIRE_OPERATION(exchange_objects, (ObjectExchange exchange), std::move(exchange))
#undef GRADWIRE_OPERATION

  void monitored_barrier(std::optional<absl::Duration> timeout, bool wait_all_ranks) override;

  WorkPtr broadcast_multigpu_async(Tensors tensors, int src) override;
  WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op) override;
  WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op) override;
  WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors) override;

  void send(at::Tensor tensor, int dst, int tag) override;
  int recv(at::Tensor tensor, int src, int tag) override;
  WorkPtr isend(at::Tensor tensor, int dst, int tag) override;
  WorkPtr irecv(at::Tensor tensor, int src, int tag) override;

  void abort(const std::string& reason) override;
  std::string flight_record() const override { return identity_->recorder.text(); }
  void destroy() override;

 private:
  enum class Mode { kNow, kLater };
  struct Transfer;

  WorkPtr begin_broadcast(Mode mode, at::Tensor tensor, int src);
  WorkPtr begin_reduce(Mode mode, at::Tensor tensor, int dst, const Reduction& op);
  WorkPtr begin_all_reduce(Mode mode, at::Tensor tensor, const Reduction& op);
  WorkPtr begin_gather(Mode mode, at::Tensor tensor, Tensors list, int dst);
  WorkPtr begin_all_gather(Mode mode, Tensors list, at::Tensor tensor);
  WorkPtr begin_scatter(Mode mode, at::Tensor tensor, Tensors list, int src);
  WorkPtr begin_reduce_scatter(Mode mode, at::Tensor output, Tensors list, const Reduction& op);
  WorkPtr begin_all_to_all(Mode mode, Tensors outputs, Tensors inputs);
  WorkPtr begin_barrier(Mode mode, const std::vector<int>& device_ids);
  WorkPtr begin_all_gather_into_tensor(Mode mode, at::Tensor output, at::Tensor input);
  WorkPtr begin_reduce_scatter_tensor(Mode mode, at::Tensor output, at::Tensor input, const Reduction& op);
  WorkPtr begin_all_to_all_single(Mode mode, at::Tensor output, at::Tensor input,
                                  const std::vector<int64_t>& output_splits,
                                  const std::vector<int64_t>& input_splits);
  WorkPtr begin_exchange_objects(Mode mode, ObjectExchange exchange);

  // Runs absl::Status run(RunContext&) in its turn; see process_group_run.h. `device`: of the tensors.
  template <class Run>
  WorkPtr perform(Mode mode, const OperationRecord& record, c10::Device device, Run run);
  template <class Run>
  WorkPtr perform_later(const OperationRecord& record, c10::Device device, Run run);
  template <class Run>
  absl::Status run_in_turn(const OperationRecord& record, uint64_t ticket, uint64_t entry, c10::Device device,
                           Run& run, CoarseTime now, std::unique_ptr<Enqueued>& enqueued);

  // Throws the check's error, with the operation and the group.
  void check(Operation operation, const absl::Status& status) const {
    if (!status.ok()) refuse(operation, status);
  }
  [[noreturn]] void refuse(Operation operation, const absl::Status& status) const;
  int check_rank(Operation operation, int world_rank, absl::string_view name) const;
  absl::Status compare_with_others(RunContext& run, const OperationRecord& record, uint64_t sequence,
                                   c10::Device device) const;
  absl::Status check_multi_device() const;

  // Where operations without tensors of the caller's have theirs.
  c10::Device own_device() const;
  // Of an operation that begins at `now`.
  absl::Time deadline(CoarseTime now) const { return to_time(now + kCoarseClockLag) + options_.timeout; }
  absl::Status closed_error() const;
  absl::Status interruption() const;
  // None when the group has been destroyed.
  std::shared_ptr<GroupBackend> backend_for_others() const;
  Transfer record_transfer(Operation operation, const at::Tensor& tensor, int peer, int tag, CoarseTime now);
  Transfer begin_send(at::Tensor tensor, int dst, int tag);
  // `waits`: the caller does so at once.
  Transfer begin_receive(at::Tensor tensor, int src, int tag, bool waits);

  const std::shared_ptr<GroupIdentity> identity_;
  const ArgumentChecks checks_;
  const Backend kind_;
  const bool takes_cpu_;
  const bool stage_to_host_;
  const ProcessGroupOptions options_;
  const std::shared_ptr<store::Store> store_;

  Turnstile turnstile_;
  // Read and written by whoever's turn it is.
  bool closed_ = false;
  int64_t monitored_barriers_ = 0;
  int64_t forgotten_barriers_ = 0;
  int64_t groups_made_ = 0;
  // Changed in turn and under the mutex; read with either.
  std::shared_ptr<GroupBackend> backend_;

  mutable Mutex mutex_;
  // Why abort() was called; OK until then.
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<ProcessGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  Mutex destroy_mutex_;
  bool destroyed_ ABSL_GUARDED_BY(destroy_mutex_) = false;

  AsyncQueue async_;
};

// What a call with this tensor is recorded as.
OperationRecord record_of(Operation operation, const at::Tensor& tensor);

}  // namespace gradwire::collectives
