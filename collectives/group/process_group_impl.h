#pragma once

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
#include "gradwire/collectives/group/agreement.h"
#include "gradwire/collectives/group/group_identity.h"
#include "gradwire/collectives/group/operation_runner.h"
#include "gradwire/collectives/group/transfer.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The parts of a group, for its constructor.
struct GroupParts {
  ArgumentChecks::Group checks;
  std::string name;
  bool is_world = true;
  // The options of the world, with the timeout of this group.
  ProcessGroupOptions options;
  std::shared_ptr<store::Store> store;
  std::unique_ptr<GroupBackend> backend;
};

// The handle of a group on a member. Checks the arguments of each operation and makes its OperationRecord.
// OperationRunner then runs the collectives, and Transfer sends and receives messages.
class ProcessGroupImpl final : public ProcessGroup {
 public:
  explicit ProcessGroupImpl(GroupParts parts);
  // Leaves the group, if this is the process that joined it.
  ~ProcessGroupImpl() override;

  int rank() const override { return identity_->rank; }
  int size() const override { return checks_.size(); }
  Backend backend() const override { return kind_; }
  const std::vector<int>& ranks() const override { return identity_->ranks; }
  const std::string& name() const override { return identity_->name; }
  absl::Duration timeout() const override { return options_.timeout; }
  std::vector<std::shared_ptr<ProcessGroup>> new_groups(std::vector<std::vector<int>> lists,
                                                        const NewGroupOptions& options) override;

// Defines NAME and NAME_async. Both call begin_NAME; for NAME it throws the operation's Error.
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
  GRADWIRE_OPERATION(coalesced, (std::vector<CoalescedCall> calls), std::move(calls))
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
  void check_isend(const at::Tensor& tensor, int dst, int tag) const override {
    check(Operation::kSend, runner_->check_peer(tensor, check_send(tensor, dst, tag)));
  }
  void check_irecv(const at::Tensor& tensor, int src, int tag) const override {
    check(Operation::kReceive, runner_->check_peer(tensor, check_receive(tensor, src, tag)));
  }

  void abort(const std::string& reason) override {
    throw_if_error(runner_->check_process());
    runner_->abort(reason);
  }
  std::string flight_record() const override { return identity_->recorder.text(); }
  void destroy() override;

 private:
  using Mode = OperationRunner::Mode;

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
  WorkPtr begin_coalesced(Mode mode, std::vector<CoalescedCall> calls);
  WorkPtr begin_exchange_objects(Mode mode, ObjectExchange exchange);

  // Throws `status` if it is an error, with the operation and the group in the message.
  void check(Operation operation, const absl::Status& status) const {
    if (!status.ok()) refuse(operation, status);
  }
  // Throws `status`, an error, with the operation and the group in the message.
  [[noreturn]] void refuse(Operation operation, const absl::Status& status) const;
  // Returns the rank in the group; throws if `world_rank` is not a member. `name`: the name of the argument.
  int check_rank(Operation operation, int world_rank, absl::string_view name) const;

  // Check the arguments of a message, and return the rank in the group of the other end; -1 for any source.
  int check_send(const at::Tensor& tensor, int dst, int tag) const;
  int check_receive(const at::Tensor& tensor, int src, int tag) const;

  std::shared_ptr<GroupIdentity> identity_;
  const ArgumentChecks checks_;
  const Backend kind_;
  const ProcessGroupOptions options_;
  // The device of barriers and of collectives of objects, which get no tensors from the caller.
  const c10::Device own_device_;
  // The device of barriers that name devices: an accelerator if the group has a backend for one.
  const c10::Device barrier_device_;
  const std::shared_ptr<store::Store> store_;

  std::shared_ptr<OperationRunner> runner_;

  // Read and written only by the operation whose turn it is.
  MonitoredBarrier monitored_barrier_;
  int64_t calls_of_new_groups_ = 0;

  Mutex mutex_;
  // The groups made in this group; destroy() destroys them too.
  std::vector<std::weak_ptr<ProcessGroup>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives
