#include "gradwire/collectives/group/process_group_impl.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/collectives/group/consistency.h"
#include "gradwire/collectives/group/join.h"
#include "gradwire/collectives/group/process_group_run.h"

namespace gradwire::collectives {
namespace {

absl::Status with_time(const absl::Status& status, absl::Duration patience) {
  if (status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), " within ", absl::FormatDuration(patience)));
}

uint64_t hash_of(at::IntArrayRef sizes) {
  return stable_hash({reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t)});
}

}  // namespace

OperationRecord record_of(Operation operation, const at::Tensor& tensor) {
  OperationRecord record;
  record.operation = operation;
  record.dtype = c10::toString(tensor.scalar_type());
  const at::IntArrayRef sizes = tensor.sizes();
  record.dimensions = static_cast<uint8_t>(std::min<std::size_t>(sizes.size(), 255));
  const std::size_t kept = std::min<std::size_t>(sizes.size(), OperationRecord::kMostSizes);
  bool whole = kept == sizes.size();
  for (std::size_t i = 0; i < kept; ++i) {
    record.sizes[i] =
        static_cast<uint32_t>(std::min<int64_t>(sizes[i], std::numeric_limits<uint32_t>::max()));
    whole = whole && static_cast<int64_t>(record.sizes[i]) == sizes[i];
  }
  record.elements = tensor.numel();
  if (!whole) [[unlikely]]
    record.shape_hash = hash_of(sizes);
  return record;
}

ProcessGroupImpl::ProcessGroupImpl(GroupParts parts)
    : identity_(
          std::make_shared<GroupIdentity>(parts.name, parts.checks.rank, parts.checks.ranks, parts.is_world)),
      checks_(parts.checks),
      kind_(parts.checks.backend),
      takes_cpu_(parts.checks.takes_cpu),
      stage_to_host_(parts.stage_to_host),
      options_(std::move(parts.options)),
      store_(std::move(parts.store)),
      backend_(std::move(parts.backend)) {}

// Nobody calls any more: what is queued would hold the group.
ProcessGroupImpl::~ProcessGroupImpl() { async_.close(); }

void ProcessGroupImpl::refuse(Operation operation, const absl::Status& status) const {
  throw Error(with_context(status, absl::StrCat(name_of(operation), " of group \"", name(), "\" (rank ",
                                                rank(), " of ", size(), ")")));
}

int ProcessGroupImpl::check_rank(Operation operation, int world_rank, absl::string_view name) const {
  const absl::StatusOr<int> rank = checks_.group_rank(world_rank, name);
  if (!rank.ok()) refuse(operation, rank.status());
  return *rank;
}

c10::Device ProcessGroupImpl::own_device() const {
  if (takes_cpu_) return c10::Device(at::kCPU);
  return options_.device_id < 0 ? c10::Device(at::kCUDA)
                                : c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options_.device_id));
}

absl::Status ProcessGroupImpl::closed_error() const {
  return absl::FailedPreconditionError(absl::StrCat("the process group \"", name(), "\" has been destroyed"));
}

absl::Status ProcessGroupImpl::interruption() const {
  MutexLock lock(mutex_);
  return aborted_;
}

std::shared_ptr<GroupBackend> ProcessGroupImpl::backend_for_others() const {
  MutexLock lock(mutex_);
  return backend_;
}

absl::Status ProcessGroupImpl::compare_with_others(RunContext& run, const OperationRecord& record,
                                                   uint64_t sequence, c10::Device device) const {
  if (record.operation == Operation::kMonitoredBarrier || record.operation == Operation::kNewGroup) {
    return absl::OkStatus();
  }
  return check_consistency(run, record, sequence, device);
}

void ProcessGroupImpl::monitored_barrier(std::optional<absl::Duration> timeout, bool wait_all_ranks) {
  OperationRecord record;
  record.operation = Operation::kMonitoredBarrier;
  const absl::Duration patience = timeout.value_or(options_.timeout);
  (void)perform(Mode::kNow, record, c10::Device(at::kCPU), [&](RunContext& run) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(interruption());
    const int64_t round = monitored_barriers_++;
    const auto key = [](int64_t number) { return absl::StrCat("monitored_barrier/", number); };
    GRADWIRE_RETURN_IF_ERROR(
        with_time(agree({.store = *store_,
                         .key = key(round),
                         .rank = run.rank,
                         .size = run.size,
                         .deadline = patience == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                                          : Clock::system().now() + patience,
                         .interrupted = [this] { return interruption(); },
                         .name_all = wait_all_ranks},
                        ""),
                  patience));
    // Who has come to this one is through with those before.
    if (run.rank == 0) {
      for (; forgotten_barriers_ < round; ++forgotten_barriers_) {
        forget(*store_, key(forgotten_barriers_), run.size);
      }
    }
    return absl::OkStatus();
  });
}

std::shared_ptr<ProcessGroup> ProcessGroupImpl::new_group(std::vector<int> ranks,
                                                          const NewGroupOptions& options) {
  OperationRecord record;
  record.operation = Operation::kNewGroup;
  if (!identity_->is_world) {
    refuse(Operation::kNewGroup,
           absl::FailedPreconditionError("groups are made in the world, not in a group"));
  }
  std::shared_ptr<ProcessGroup> made;
  (void)perform(Mode::kNow, record, c10::Device(at::kCPU), [&](RunContext& run) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(interruption());
    GRADWIRE_ASSIGN_OR_RETURN(made, make_group({.world = *this,
                                                .number = groups_made_++,
                                                .ranks = std::move(ranks),
                                                .options = options,
                                                .world_options = options_,
                                                .store = store_,
                                                .world_state = run.backend.world_state(),
                                                .interrupted = [this] { return interruption(); }}));
    return absl::OkStatus();
  });
  MutexLock lock(mutex_);
  groups_.push_back(made);
  return made;
}

void ProcessGroupImpl::abort(const std::string& reason) {
  const absl::Status status = absl::AbortedError(absl::StrCat("aborted: ", reason));
  std::shared_ptr<GroupBackend> backend;
  {
    MutexLock lock(mutex_);
    if (aborted_.ok()) aborted_ = status;
    backend = backend_;
  }
  log(LogLevel::kInfo, "process group \"", name(), "\": rank ", rank(), " aborts it: ", reason);
  if (backend != nullptr) backend->abort(status);
}

void ProcessGroupImpl::destroy() {
  if (async_.on_thread()) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "the group \"", name(), "\" cannot be destroyed by a callback of one of its own operations")));
  }
  std::vector<std::weak_ptr<ProcessGroup>> groups;
  {
    MutexLock lock(mutex_);
    groups.swap(groups_);
  }
  for (const std::weak_ptr<ProcessGroup>& weak : groups) {
    if (const std::shared_ptr<ProcessGroup> group = weak.lock()) group->destroy();
  }
  MutexLock one_at_a_time(destroy_mutex_);
  if (destroyed_) return;
  destroyed_ = true;
  async_.close();
  const uint64_t ticket = turnstile_.take();
  if (!turnstile_.wait_until(ticket, deadline(coarse_now()))) {
    abort("the group is being destroyed");
    turnstile_.wait(ticket);
  }
  closed_ = true;
  std::shared_ptr<GroupBackend> backend;
  {
    MutexLock lock(mutex_);
    backend.swap(backend_);
  }
  turnstile_.leave(ticket);
  backend.reset();
  async_.join();
  log(LogLevel::kInfo, "process group \"", name(), "\": rank ", rank(), " has left");
}

}  // namespace gradwire::collectives
