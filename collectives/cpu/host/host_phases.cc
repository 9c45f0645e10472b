// Publishing and waiting in shared memory. A wait goes through three stages: it spins on the line of the
// awaited member, then yields, and then sleeps on a futex that all members share. Only the last stage checks
// for failures: the deadline, a broken group, and members that are gone. A wait reaches it after about a
// millisecond (CoreWait).

#include "gradwire/collectives/cpu/host/host_phases.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/base/threads/futex.h"

namespace gradwire::collectives::cpu {
namespace {

// How often a member yields until the member that broke the group has written the reason.
constexpr int kYieldsForReason = 10'000;
}  // namespace

HostPhases::HostPhases(HostMemory& memory, int rank, int size, std::vector<int> names)
    : memory_(memory),
      rank_(rank),
      size_(size),
      names_(std::move(names)),
      sharing_(size),
      copies_(static_cast<std::size_t>(size)),
      known_published_(size, 0) {}

std::string HostPhases::name_of(int member) const {
  return absl::StrCat("rank ", names_.empty() ? member : names_[member]);
}

absl::Status HostPhases::begin(absl::Time deadline) {
  // This check only saves time: a group that breaks right after it is noticed in the next wait.
  if (memory_.header().broken_by.load(std::memory_order_relaxed) != 0) {
    return absl::AbortedError(absl::StrCat("the group is broken: ", broken().message()));
  }
  ++phase_;
  for (int member = 0; member < size_; ++member) {
    // In many operations this member has already waited for the others, so begin() reads no line of theirs.
    if (known_published_[member] + 1 >= phase_ || member == rank_) continue;
    if (!has_published(member, phase_ - 1)) {
      if (absl::Status status = wait(member, phase_ - 1, deadline); !status.ok()) return status;
    }
    known_published_[member] = phase_ - 1;
  }
  return absl::OkStatus();
}

void HostPhases::publish() {
  // This is a read of the thread's own memory on systems with restartable sequences.
  if (const int core = ::sched_getcpu(); core != core_) {
    core_ = core;
    memory_.member(rank_).core.store(core, std::memory_order_relaxed);
  }
  // The store publishes the data in the slot and in the line: has_published() loads the number before the
  // data is read. It must be sequentially consistent for wake_sleepers().
  line(rank_).sequence.store(phase_, std::memory_order_seq_cst);
  wake_sleepers();
}

void HostPhases::wake_sleepers() {
  HostMemory::Header& header = memory_.header();
  // No wake-up may be lost. The publisher stores the number of the phase and then reads `sleepers`. A sleeper
  // increments `sleepers` and then reads the number. The stores are sequentially consistent, so at least one
  // of the two threads sees the other's store. The sleep is bounded anyway (CoreWait::kSleepFor).
  if (header.sleepers.load(std::memory_order_seq_cst) != 0) memory_.signal();
}

absl::Status HostPhases::wait_published(int member, absl::Time deadline) {
  if (!has_published(member, phase_)) {
    if (absl::Status status = wait(member, phase_, deadline); !status.ok()) return status;
  }
  known_published_[member] = phase_;
  return absl::OkStatus();
}

absl::Status HostPhases::wait_all_published(absl::Time deadline) {
  for (int member = 0; member < size_; ++member) {
    if (member == rank_) continue;
    if (absl::Status status = wait_published(member, deadline); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool HostPhases::core_is_wanted(uint64_t phase) const {
  const int core = ::sched_getcpu();
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && memory_.member(member).core.load(std::memory_order_relaxed) == core &&
        !has_published(member, phase)) {
      return true;
    }
  }
  return false;
}

absl::Status HostPhases::wait(int member, uint64_t phase, absl::Time deadline) {
  CoreWait wait(sharing_, deadline);
  const auto core_is_wanted = [&] { return this->core_is_wanted(phase); };
  const auto published = [&] { return has_published(member, phase); };
  while (!published()) {
    switch (wait.rest(core_is_wanted)) {
      case CoreWait::Rest::kSpin:
        if (spin(CoreWait::kSpins, published)) return absl::OkStatus();
        [[fallthrough]];
      case CoreWait::Rest::kYield:
        ::sched_yield();
        break;
      case CoreWait::Rest::kSleep:
        return wait_asleep(member, phase, deadline);
    }
  }
  return absl::OkStatus();
}

// Each round:
// 1. Read the number of signals. A signal from now on ends the sleep of step 4 at once.
// 2. Become a sleeper, so that publishers signal (wake_sleepers).
// 3. Check whether the member has published or the group is broken, because nobody signalled before step 2.
// 4. Sleep, for at most kSleepFor.
// 5. Find out whether the wait can go on: check the data first, then the reason of a broken group, then
//    whether the member is gone, then the deadline.
// The order of step 5 matters: a member may publish and leave at once, and the phase is then complete.
absl::Status HostPhases::wait_asleep(int member, uint64_t phase, absl::Time deadline) {
  const auto ready = [&] { return has_published(member, phase); };
  HostMemory::Header& header = memory_.header();
  while (true) {
    const uint32_t signals = header.signals.load();
    header.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool is_ready = ready();
    const bool is_broken = header.broken_by.load() != 0;
    const absl::Time now = Clock::system().now();
    if (!is_ready && !is_broken && now < deadline) {
      futex_wait(header.signals, signals, std::min(CoreWait::kSleepFor, deadline - now));
    }
    header.sleepers.fetch_sub(1);
    if (is_ready || ready()) return absl::OkStatus();
    // The reason takes precedence: the member that broke the group may have left since.
    if (header.broken_by.load() != 0) return broken();
    // Check once more: the member may have published before it left.
    if (memory_.gone(member)) {
      if (ready()) return absl::OkStatus();
      return fail(
          absl::UnavailableError(absl::StrCat(name_of(member), " is lost: it left, or its process ended")));
    }
    if (now < deadline) continue;
    std::vector<std::string> missing;
    for (int each = 0; each < size_; ++each) {
      if (each != rank_ && !has_published(each, phase)) missing.push_back(name_of(each));
    }
    return fail(absl::DeadlineExceededError(
        missing.empty() ? absl::StrCat(name_of(member), " did not complete the operation")
                        : absl::StrCat("did not arrive: ", absl::StrJoin(missing, ", "))));
  }
}

absl::Status HostPhases::broken() const {
  const HostMemory::Header& header = memory_.header();
  const uint32_t breaker = header.broken_by.load();
  if (breaker == 0) return absl::OkStatus();
  // The member that breaks the group sets `broken_by` first and writes the reason a moment later, unless its
  // process ends in between.
  for (int i = 0; i < kYieldsForReason && header.reason_size.load() == 0; ++i) ::sched_yield();
  const std::size_t size = std::min<std::size_t>(header.reason_size.load(), HostMemory::kMaxReason);
  std::string reason(header.reason, size);
  // Any process may have written these fields, so their values are bounded before use.
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  if (reason.empty()) reason = "unknown reason: the member ended before it wrote one";
  const auto code = static_cast<absl::StatusCode>(header.reason_code.load());
  const std::string finder =
      breaker > static_cast<uint32_t>(size_) ? "an unknown rank" : name_of(static_cast<int>(breaker) - 1);
  const std::string message = absl::StrCat(reason, " (found by ", finder, ")");
  switch (code) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInvalidArgument:
      return absl::Status(code, message);
    default:
      return absl::AbortedError(message);
  }
}

// Several members may fail at the same time. The compare-and-exchange chooses one, and only that one writes
// the reason. reason_size is stored last: a value above 0 means that the reason is complete. The others
// return their own status here, and find the first reason in their next operation.
absl::Status HostPhases::fail(absl::Status status) {
  HostMemory::Header& header = memory_.header();
  uint32_t unbroken = 0;
  if (header.broken_by.compare_exchange_strong(unbroken, static_cast<uint32_t>(rank_) + 1)) {
    // An empty reason would never count as complete.
    const absl::string_view reason = status.message().empty() ? "no reason was given" : status.message();
    const std::size_t size = std::min(reason.size(), HostMemory::kMaxReason);
    std::memcpy(header.reason, reason.data(), size);
    header.reason_code.store(static_cast<int32_t>(status.code()));
    header.reason_size.store(static_cast<uint32_t>(size));
  }
  memory_.signal();
  return status;
}

}  // namespace gradwire::collectives::cpu
