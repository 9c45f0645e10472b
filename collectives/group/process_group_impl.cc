#include "gradwire/collectives/group/process_group_impl.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/collectives/group/group_setup.h"

namespace gradwire::collectives {
namespace {

c10::Device device_for_barriers(const std::vector<ServedDevice>& served, int device_id) {
  const c10::DeviceType type = served.front().type;
  if (type == c10::DeviceType::CPU) return c10::Device(type);
  return c10::Device(type, static_cast<c10::DeviceIndex>(device_id < 0 ? -1 : device_id));
}

c10::Device accelerator_or_host(const std::vector<ServedDevice>& served) {
  for (const ServedDevice& each : served) {
    if (each.type != c10::DeviceType::CPU && !each.staged) return c10::Device(each.type);
  }
  return c10::Device(c10::DeviceType::CPU);
}

StagedDevices staged_in(const std::vector<ServedDevice>& served) {
  StagedDevices staged;
  for (const ServedDevice& each : served) {
    if (each.staged) staged.add(each.type);
  }
  return staged;
}

}  // namespace

ProcessGroupImpl::ProcessGroupImpl(GroupParts parts)
    : identity_(
          std::make_shared<GroupIdentity>(parts.name, parts.checks.rank, parts.checks.ranks, parts.is_world)),
      checks_(parts.checks),
      kind_(parts.checks.backend),
      options_(std::move(parts.options)),
      own_device_(device_for_barriers(parts.checks.served, options_.device_id)),
      barrier_device_(accelerator_or_host(parts.checks.served)),
      store_(std::move(parts.store)),
      runner_(std::make_shared<OperationRunner>(
          identity_,
          OperationRunner::Options{.size = checks_.size(),
                                   .timeout = options_.timeout,
                                   .staged = staged_in(parts.checks.served),
                                   .check_consistency = options_.check_consistency},
          std::move(parts.backend))) {}

// In a forked child the threads, the connections and the shared memory are those of the parent.
ProcessGroupImpl::~ProcessGroupImpl() {
  if (!runner_->check_process().ok()) leak_after_fork(runner_, identity_);
}

void ProcessGroupImpl::refuse(Operation operation, const absl::Status& status) const {
  throw Error(with_context(status, absl::StrCat(name_of(operation), " of group \"", name(), "\" (rank ",
                                                rank(), " of ", size(), ")")));
}

int ProcessGroupImpl::check_rank(Operation operation, int world_rank, absl::string_view name) const {
  const int rank = checks_.find_rank(world_rank);
  if (rank < 0) refuse(operation, checks_.group_rank(world_rank, name).status());
  return rank;
}

void ProcessGroupImpl::monitored_barrier(std::optional<absl::Duration> timeout, bool wait_all_ranks) {
  OperationRecord record;
  record.operation = Operation::kMonitoredBarrier;
  (void)runner_->perform(Mode::kNow, record, c10::Device(at::kCPU), [&](RunContext& run) -> absl::Status {
    // This operation uses the store and not the backend, so an abort of the backend does not end it. It
    // checks for an abort itself; new_group() does the same.
    GRADWIRE_RETURN_IF_ERROR(runner_->interruption());
    Agreement round{.store = *store_, .rank = run.rank, .size = run.size, .name_all = wait_all_ranks};
    round.interrupted = [this] { return runner_->interruption(); };
    return monitored_barrier_.run(std::move(round), timeout.value_or(options_.timeout));
  });
}

std::vector<std::shared_ptr<ProcessGroup>> ProcessGroupImpl::new_groups(std::vector<std::vector<int>> lists,
                                                                        const NewGroupOptions& options) {
  OperationRecord record;
  record.operation = Operation::kNewGroup;
  std::vector<std::shared_ptr<ProcessGroup>> made;
  (void)runner_->perform(Mode::kNow, record, c10::Device(at::kCPU), [&](RunContext& run) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(runner_->interruption());
    GRADWIRE_ASSIGN_OR_RETURN(made, make_groups({.parent = *this,
                                                 .number = calls_of_new_groups_++,
                                                 .lists = std::move(lists),
                                                 .options = options,
                                                 .parent_options = options_,
                                                 .store = store_,
                                                 .world_state = run.backend.world_state(),
                                                 .interrupted = [this] { return runner_->interruption(); }}));
    return absl::OkStatus();
  });
  MutexLock lock(mutex_);
  groups_.insert(groups_.end(), made.begin(), made.end());
  return made;
}

void ProcessGroupImpl::destroy() {
  throw_if_error(runner_->check_process());
  if (runner_->on_thread()) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat("cannot destroy group \"", name(), "\" in a callback of one of its own operations")));
  }
  std::vector<std::weak_ptr<ProcessGroup>> groups;
  {
    MutexLock lock(mutex_);
    groups.swap(groups_);
  }
  // The groups use state of this group's backend (world_state), so they leave before it does. A group
  // that nobody uses any more has already left.
  for (const std::weak_ptr<ProcessGroup>& weak : groups) {
    if (const std::shared_ptr<ProcessGroup> group = weak.lock()) group->destroy();
  }
  runner_->close();
}

int ProcessGroupImpl::check_send(const at::Tensor& tensor, int dst, int tag) const {
  const int to = check_rank(Operation::kSend, dst, "dst");
  check(Operation::kSend, checks_.tag(tag));
  check(Operation::kSend, checks_.readable(tensor, "tensor"));
  return to;
}

int ProcessGroupImpl::check_receive(const at::Tensor& tensor, int src, int tag) const {
  const int from = src == kAnySource ? -1 : check_rank(Operation::kReceive, src, "src");
  check(Operation::kReceive, checks_.tag(tag));
  check(Operation::kReceive, checks_.writable(tensor, "tensor"));
  return from;
}

void ProcessGroupImpl::send(at::Tensor tensor, int dst, int tag) {
  const int to = check_send(tensor, dst, tag);
  if (const std::optional<absl::Status> sent = Transfer::try_send(*runner_, tensor, dst, to, tag)) {
    throw_if_error(*sent);
    return;
  }
  (void)Transfer::send(*runner_, std::move(tensor), dst, to, tag).wait();
}

ProcessGroup::WorkPtr ProcessGroupImpl::isend(at::Tensor tensor, int dst, int tag) {
  // Shared by all sends that end at once, so that no memory is allocated for them.
  static const auto* const done = new WorkPtr(std::make_shared<Work>(Future<int>(-1)));
  const int to = check_send(tensor, dst, tag);
  if (const std::optional<absl::Status> sent = Transfer::try_send(*runner_, tensor, dst, to, tag)) {
    return sent->ok() ? *done : std::make_shared<Work>(Future<int>(*sent));
  }
  return Transfer::send(*runner_, std::move(tensor), dst, to, tag).as_work();
}

int ProcessGroupImpl::recv(at::Tensor tensor, int src, int tag) {
  const int from = check_receive(tensor, src, tag);
  if (const std::optional<int> source = Transfer::try_receive(*runner_, tensor, src, from, tag))
    return *source;
  return Transfer::receive(*runner_, std::move(tensor), src, from, tag).wait();
}

ProcessGroup::WorkPtr ProcessGroupImpl::irecv(at::Tensor tensor, int src, int tag) {
  const int from = check_receive(tensor, src, tag);
  return Transfer::receive(*runner_, std::move(tensor), src, from, tag).as_work();
}

}  // namespace gradwire::collectives
