#include "gradwire/collectives/mpi/mpi_messages.h"

#include <sched.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {
namespace {

// How long the thread polls for more before it sleeps: waking it costs as much.
constexpr int kLingerYields = 200;
// How often it asks whether a sender is still there.
constexpr absl::Duration kLooks = absl::Milliseconds(250);

}  // namespace

MpiMessages::~MpiMessages() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    thread = std::move(thread_);
    changed_.notify_all();
  }
  if (thread.joinable()) thread.join();
}

absl::Status MpiMessages::check_tag(int tag) {
  GRADWIRE_RETURN_IF_ERROR(member_->refusal());
  void* most = nullptr;
  int known = 0;
  GRADWIRE_RETURN_IF_ERROR(member_->runtime().call(
      "MPI_Comm_get_attr", [&] { return MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &known); }));
  if (known != 0 && tag > *static_cast<int*>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tag ", tag, ": MPI's go up to ", *static_cast<int*>(most)));
  }
  return absl::OkStatus();
}

Future<void> MpiMessages::send(at::Tensor tensor, int dst, int tag, absl::Time deadline) {
  const Promise<void> sent;
  const absl::Status begun =
      begin({.tensor = std::move(tensor), .deadline = deadline, .peer = dst, .tag = tag, .sent = sent});
  return begun.ok() ? sent.future() : Future<void>(begun);
}

Future<int> MpiMessages::receive(at::Tensor tensor, int src, int tag, absl::Time deadline) {
  const Promise<int> received;
  const absl::Status begun = begin(
      {.tensor = std::move(tensor), .deadline = deadline, .peer = src, .tag = tag, .received = received});
  return begun.ok() ? received.future() : Future<int>(begun);
}

absl::Status MpiMessages::begin(Pending pending) {
  GRADWIRE_RETURN_IF_ERROR(check_tag(pending.tag));
  synchronize(pending.tensor);
  const MpiMessage message{.comm = member_->messages(),
                           .sends = pending.sent.has_value(),
                           .data = pending.tensor.data_ptr(),
                           .bytes = static_cast<int64_t>(pending.tensor.nbytes()),
                           .peer = pending.peer < 0 ? MPI_ANY_SOURCE : pending.peer,
                           .tag = pending.tag};
  GRADWIRE_RETURN_IF_ERROR(start(member_->runtime(), message, member_->block(), &pending.request));
  if (auto ended = test(pending); ended.has_value()) {
    complete(pending, *std::move(ended));
  } else {
    enqueue(std::move(pending));
  }
  return absl::OkStatus();
}

std::optional<absl::StatusOr<int>> MpiMessages::test(Pending& pending) {
  int done = 0;
  MPI_Status about{};
  const absl::Status status =
      member_->runtime().call("MPI_Test", [&] { return MPI_Test(&pending.request, &done, &about); });
  if (!status.ok()) {
    if (status.code() == absl::StatusCode::kInvalidArgument && pending.received.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", about.MPI_SOURCE, " sent more than the ",
                                                     pending.tensor.nbytes(), " bytes of the tensor"));
    }
    return status;
  }
  if (done == 0) return std::nullopt;
  if (!pending.received.has_value()) return -1;
  MPI_Count bytes = 0;
  (void)member_->runtime().call("MPI_Get_elements_x",
                                [&] { return MPI_Get_elements_x(&about, MPI_BYTE, &bytes); });
  if (bytes != static_cast<MPI_Count>(pending.tensor.nbytes())) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", about.MPI_SOURCE, " sent ", bytes,
                                                   " bytes, the tensor has ", pending.tensor.nbytes()));
  }
  return about.MPI_SOURCE;
}

void MpiMessages::complete(Pending& pending, absl::StatusOr<int> result) {
  // The tensor goes first: it is the caller's again.
  pending.tensor = at::Tensor();
  if (pending.received.has_value()) {
    pending.received->set_result(std::move(result));
  } else if (result.ok()) {
    pending.sent->set_value();
  } else {
    pending.sent->set_error(result.status());
  }
}

void MpiMessages::enqueue(Pending pending) {
  MutexLock lock(mutex_);
  arrived_.push_back(std::move(pending));
  if (!thread_.joinable() && !closing_) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void MpiMessages::run() {
  std::vector<Pending> pending;
  MpiPause pause;
  absl::Time next_look = Clock::system().now() + kLooks;
  for (int idle = 0;;) {
    bool closing = false;
    {
      MutexLock lock(mutex_);
      if (pending.empty() && arrived_.empty() && idle > kLingerYields) {
        while (arrived_.empty() && !closing_) changed_.wait(mutex_);
      }
      closing = closing_;
      if (!arrived_.empty()) pause.reset();
      std::move(arrived_.begin(), arrived_.end(), std::back_inserter(pending));
      arrived_.clear();
    }
    if (closing) break;
    if (pending.empty()) {
      ++idle;
      sched_yield();
      continue;
    }
    idle = 0;
    const bool timely = pause.pause();
    const bool look = timely && pause.now() >= next_look;
    if (look) next_look = pause.now() + kLooks;
    for (std::size_t i = 0; i < pending.size();) {
      if (auto ended = test(pending[i]); ended.has_value()) {
        complete(pending[i], *std::move(ended));
      } else if (member_->broken()) {
        give_up(pending[i], member_->refusal());
      } else if (!timely || !failed(pending[i], pause.now(), look)) {
        ++i;
        continue;
      }
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      pause.reset();
    }
  }
  for (Pending& rest : pending) give_up(rest, absl::AbortedError("the group was left"));
}

bool MpiMessages::failed(Pending& pending, absl::Time now, bool look) {
  const bool late = now >= pending.deadline;
  bool lost = false;
  if (!late && look && pending.peer >= 0 && member_->witness().has_left(pending.peer)) {
    // A message that it sent before it left may be on its way: it has the time until the next look.
    lost = pending.orphaned;
    pending.orphaned = true;
  }
  if (!late && !lost) return false;
  const std::string what =
      absl::StrCat(pending.received.has_value() ? "no message from " : "the message was not taken by ",
                   pending.peer < 0 ? std::string("any rank") : absl::StrCat("rank ", pending.peer), ", tag ",
                   pending.tag);
  give_up(pending, member_->break_with(late ? absl::DeadlineExceededError(what + ", in time")
                                            : absl::UnavailableError(what + ": it has left the group")));
  return true;
}

void MpiMessages::give_up(Pending& pending, const absl::Status& reason) {
  // Open MPI takes back receives, not sends; what it has taken back touches no memory any more.
  int done = 0;
  if (pending.received.has_value()) {
    (void)member_->runtime().call("MPI_Cancel", [&] { return MPI_Cancel(&pending.request); });
    (void)member_->runtime().call("MPI_Test",
                                  [&] { return MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE); });
  }
  if (done == 0) member_->abandon({pending.request}, {pending.tensor});
  complete(pending, reason);
}

}  // namespace gradwire::collectives
