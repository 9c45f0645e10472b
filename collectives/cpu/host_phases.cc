#include "gradwire/collectives/cpu/host_phases.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/threads/futex.h"
#include "gradwire/base/threads/spin_wait.h"

namespace gradwire::collectives::cpu {
namespace {

// How often a member yields to the one that broke the group until it has said why.
constexpr int kYieldsForReason = 10'000;
}  // namespace

HostPhases::HostPhases(HostMemory& memory, int rank, int size, std::vector<int> names)
    : memory_(memory), rank_(rank), size_(size), names_(std::move(names)), sharing_(size), known_(size, 0) {}

std::string HostPhases::name_of(int member) const {
  return absl::StrCat("rank ", names_.empty() ? member : names_[member]);
}

absl::Status HostPhases::begin(absl::Time deadline) {
  if (memory_.header().broken_by.load(std::memory_order_relaxed) != 0) {
    return absl::AbortedError(absl::StrCat("the group is broken: ", broken().message()));
  }
  ++turn_;
  for (int member = 0; member < size_; ++member) {
    if (known_[member] + 1 >= turn_ || member == rank_) continue;
    if (!has_begun(member, turn_ - 1)) {
      if (absl::Status status = wait(member, turn_ - 1, deadline); !status.ok()) return status;
    }
    known_[member] = turn_ - 1;
  }
  return absl::OkStatus();
}

void HostPhases::publish() {
  // A look at the thread's own memory where the system has restartable sequences.
  if (const int core = ::sched_getcpu(); core != core_) {
    core_ = core;
    memory_.member(rank_).core.store(core, std::memory_order_relaxed);
  }
  line(rank_).sequence.store(turn_, std::memory_order_seq_cst);
  wake_sleepers();
}

void HostPhases::wake_sleepers() {
  HostMemory::Header& header = memory_.header();
  // After the store before it, in the one order that a sleeper's steps are in too.
  if (header.sleepers.load(std::memory_order_seq_cst) != 0) memory_.ring();
}

absl::Status HostPhases::wait_published(int member, absl::Time deadline) {
  if (!has_begun(member, turn_)) {
    if (absl::Status status = wait(member, turn_, deadline); !status.ok()) return status;
  }
  known_[member] = turn_;
  return absl::OkStatus();
}

absl::Status HostPhases::wait_all_published(absl::Time deadline) {
  for (int member = 0; member < size_; ++member) {
    if (member == rank_) continue;
    if (absl::Status status = wait_published(member, deadline); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool HostPhases::core_is_wanted(uint64_t turn) const {
  const int core = ::sched_getcpu();
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && memory_.member(member).core.load(std::memory_order_relaxed) == core &&
        !has_begun(member, turn)) {
      return true;
    }
  }
  return false;
}

absl::Status HostPhases::wait(int member, uint64_t turn, absl::Time deadline) {
  CoreWait wait(sharing_, deadline);
  const auto core_is_wanted = [&] { return this->core_is_wanted(turn); };
  const auto begun = [&] { return has_begun(member, turn); };
  while (!begun()) {
    switch (wait.rest(core_is_wanted)) {
      case CoreWait::Rest::kSpin:
        if (spin(CoreWait::kSpins, begun)) return absl::OkStatus();
        [[fallthrough]];
      case CoreWait::Rest::kYield:
        ::sched_yield();
        break;
      case CoreWait::Rest::kSleep:
        return wait_asleep(member, turn, deadline);
    }
  }
  return absl::OkStatus();
}

absl::Status HostPhases::wait_asleep(int member, uint64_t turn, absl::Time deadline) {
  const auto ready = [&] { return has_begun(member, turn); };
  HostMemory::Header& header = memory_.header();
  while (true) {
    const uint32_t bell = header.bell.load();
    header.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool is_ready = ready();
    const bool is_broken = header.broken_by.load() != 0;
    const absl::Time now = Clock::system().now();
    if (!is_ready && !is_broken && now < deadline) {
      futex_wait(header.bell, bell, std::min(CoreWait::kSleepFor, deadline - now));
    }
    header.sleepers.fetch_sub(1);
    if (is_ready || ready()) return absl::OkStatus();
    // Who breaks the group says why, and may have left since.
    if (header.broken_by.load() != 0) return broken();
    // Once more: what a member did before it left counts.
    if (memory_.gone(member)) {
      if (ready()) return absl::OkStatus();
      return fail(absl::UnavailableError(absl::StrCat(name_of(member), " is gone")));
    }
    if (now < deadline) continue;
    std::vector<std::string> missing;
    for (int each = 0; each < size_; ++each) {
      if (each != rank_ && !has_begun(each, turn)) missing.push_back(name_of(each));
    }
    return fail(absl::DeadlineExceededError(
        missing.empty() ? absl::StrCat(name_of(member), " has not done its part")
                        : absl::StrCat("did not arrive: ", absl::StrJoin(missing, ", "))));
  }
}

absl::Status HostPhases::broken() const {
  const HostMemory::Header& header = memory_.header();
  const uint32_t breaker = header.broken_by.load();
  if (breaker == 0) return absl::OkStatus();
  // Who breaks the group says so first, and why a moment later, unless it ends in between.
  for (int i = 0; i < kYieldsForReason && header.reason_size.load() == 0; ++i) ::sched_yield();
  const std::size_t size = std::min<std::size_t>(header.reason_size.load(), HostMemory::kMaxReason);
  std::string reason(header.reason, size);
  // Whatever wrote it may have written anything.
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  if (reason.empty()) reason = "it ended while it said why";
  const auto code = static_cast<absl::StatusCode>(header.reason_code.load());
  const std::string who =
      breaker > static_cast<uint32_t>(size_) ? "somebody" : name_of(static_cast<int>(breaker) - 1);
  const std::string message = absl::StrCat(reason, " (found by ", who, ")");
  switch (code) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInvalidArgument:
      return absl::Status(code, message);
    default:
      return absl::AbortedError(message);
  }
}

absl::Status HostPhases::fail(absl::Status status) {
  HostMemory::Header& header = memory_.header();
  uint32_t nobody = 0;
  if (header.broken_by.compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1)) {
    const std::size_t size = std::min(status.message().size(), HostMemory::kMaxReason);
    std::memcpy(header.reason, status.message().data(), size);
    header.reason_code.store(static_cast<int32_t>(status.code()));
    header.reason_size.store(static_cast<uint32_t>(size));
  }
  memory_.ring();
  return status;
}

}  // namespace gradwire::collectives::cpu
