#include "gradwire/collectives/mpi/mpi_member.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"

namespace gradwire::collectives {
namespace {

// MpiPause polls this often without yielding.
constexpr int kPollsAtOnce = 64;
// While it yields, it reads the clock once in so many polls.
constexpr int kPollsBetweenClockReads = 32;
// It yields for this time, then it sleeps.
constexpr absl::Duration kYieldTime = absl::Milliseconds(50);
// Until this time its sleeps are short.
constexpr absl::Duration kShortSleepTime = absl::Seconds(1);

// Requests that MPI cannot cancel, and their tensors. Kept until the process ends.
struct Abandoned {
  std::vector<MPI_Request> requests;
  std::vector<at::Tensor> tensors;
};

}  // namespace

MpiMember::MpiMember(MpiRuntime& runtime, MPI_Comm collectives, MPI_Comm messages, int rank, int size,
                     int64_t block, MpiWitness witness)
    : runtime_(runtime),
      collectives_(collectives),
      messages_(messages),
      rank_(rank),
      size_(size),
      block_(block),
      witness_(std::move(witness)) {}

MpiMember::~MpiMember() {
  if (!frees_.load() || runtime_.finalised()) return;
  // Open MPI's MPI_Comm_free does not wait for the other ranks.
  (void)runtime_.call("MPI_Comm_free", [&] { return MPI_Comm_free(&collectives_); });
  (void)runtime_.call("MPI_Comm_free", [&] { return MPI_Comm_free(&messages_); });
}

absl::Status MpiMember::refusal() {
  if (!broken()) return absl::OkStatus();
  MutexLock lock(mutex_);
  return absl::AbortedError(absl::StrCat("the group is broken: ", reason_.message()));
}

// The first reason stays. is_broken_ is stored last, so that a thread that sees it finds the reason, under
// the lock.
absl::Status MpiMember::break_with(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!is_broken_.load()) {
    reason_ = reason;
    is_broken_.store(true, std::memory_order_release);
  }
  return reason;
}

// Only a member that leaves in health frees its communicators: a broken one may have requests that still use
// them.
bool MpiMember::leave() {
  MutexLock lock(mutex_);
  if (is_broken_.load()) return false;
  reason_ = absl::AbortedError("this rank has left the group");
  is_broken_.store(true, std::memory_order_release);
  frees_.store(true);
  return true;
}

void MpiMember::abandon(std::vector<MPI_Request> requests, std::vector<at::Tensor> tensors) {
  static Mutex* mutex = new Mutex;
  static auto& all = *new std::vector<Abandoned>;
  runtime_.give_up_finalising();
  // The requests use the communicators.
  frees_.store(false);
  MutexLock lock(*mutex);
  all.push_back({std::move(requests), std::move(tensors)});
}

bool MpiPause::pause() {
  ++polls_;
  if (polls_ < kPollsAtOnce) return false;
  if (waited_ > kShortSleepTime) {
    absl::SleepFor(absl::Milliseconds(1));
  } else if (waited_ > kYieldTime) {
    absl::SleepFor(absl::Microseconds(50));
  } else {
    sched_yield();
    if (polls_ % kPollsBetweenClockReads != 0) return false;
  }
  now_ = Clock::system().now();
  if (began_ == absl::InfinitePast()) began_ = now_;
  waited_ = now_ - began_;
  return true;
}

}  // namespace gradwire::collectives
