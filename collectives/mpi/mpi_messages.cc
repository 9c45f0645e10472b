// Point-to-point messages over MPI. begin() starts a request and tests it once. A request that has not ended
// goes to the thread, which tests all of them in turn: MPI has no call that waits for requests that are added
// meanwhile. A request ends when MPI ends it, at its deadline, or when its peer has left.

#include "gradwire/collectives/mpi/mpi_messages.h"

#include <sched.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {
namespace {

// How often the idle thread yields before it sleeps. Waking it would cost about as much.
constexpr int kLingerYields = 200;
// The interval at which the thread asks the store which peers have left.
constexpr absl::Duration kStoreCheckInterval = absl::Milliseconds(250);

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
        absl::StrCat("tag is too large for MPI: got ", tag, ", expected at most ", *static_cast<int*>(most)));
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
  // MPI reads and writes memory without regard to streams, so the work on the tensor must have ended.
  synchronize(pending.tensor);
  const MpiMessage message{.comm = member_->messages(),
                           .sends = pending.sent.has_value(),
                           .data = pending.tensor.data_ptr(),
                           .bytes = static_cast<int64_t>(pending.tensor.nbytes()),
                           .peer = pending.peer < 0 ? MPI_ANY_SOURCE : pending.peer,
                           .tag = pending.tag};
  // MPI cannot take a request back, so the thread that ends it is started first.
  GRADWIRE_RETURN_IF_ERROR(ensure_thread());
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
      return absl::InvalidArgumentError(absl::StrCat("message size mismatch: rank ", about.MPI_SOURCE,
                                                     " sent more bytes than the tensor has (",
                                                     pending.tensor.nbytes(), ")"));
    }
    return status;
  }
  if (done == 0) return std::nullopt;
  if (!pending.received.has_value()) return -1;
  MPI_Count bytes = 0;
  (void)member_->runtime().call("MPI_Get_elements_x",
                                [&] { return MPI_Get_elements_x(&about, MPI_BYTE, &bytes); });
  // MPI accepts a message that is shorter than the receive.
  if (bytes != static_cast<MPI_Count>(pending.tensor.nbytes())) {
    return absl::InvalidArgumentError(absl::StrCat("message size mismatch: rank ", about.MPI_SOURCE, " sent ",
                                                   bytes, " bytes, the tensor has ",
                                                   pending.tensor.nbytes()));
  }
  return about.MPI_SOURCE;
}

void MpiMessages::complete(Pending& pending, absl::StatusOr<int> result) {
  // Release the tensor before completing the promise: then the caller has the only reference again.
  pending.tensor = at::Tensor();
  if (pending.received.has_value()) {
    pending.received->set_result(std::move(result));
  } else if (result.ok()) {
    pending.sent->set_value();
  } else {
    pending.sent->set_error(result.status());
  }
}

// The thread starts with the first message. Many groups never need it.
absl::Status MpiMessages::ensure_thread() {
  MutexLock lock(mutex_);
  if (thread_.joinable() || closing_) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(thread_, start_thread("mpi-messages", [this] { run(); }));
  return absl::OkStatus();
}

void MpiMessages::enqueue(Pending pending) {
  MutexLock lock(mutex_);
  arrived_.push_back(std::move(pending));
  changed_.notify_all();
}

// Each round:
// 1. Take new requests. Without any, the thread yields for a while and then sleeps until enqueue() notifies
//    it.
// 2. Pause, longer and longer while nothing ends (MpiPause).
// 3. Test every request. The clock and the store are checked only in some rounds, because they cost more than
//    a test.
// At the end, requests that remain are given up, so that no future stays open.
void MpiMessages::run() {
  std::vector<Pending> pending;
  MpiPause pause;
  absl::Time next_store_check = Clock::system().now() + kStoreCheckInterval;
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
    const bool clock_read = pause.pause();
    const bool check_store = clock_read && pause.now() >= next_store_check;
    if (check_store) next_store_check = pause.now() + kStoreCheckInterval;
    for (std::size_t i = 0; i < pending.size();) {
      if (auto ended = test(pending[i]); ended.has_value()) {
        complete(pending[i], *std::move(ended));
      } else if (member_->broken()) {
        give_up(pending[i], member_->refusal());
      } else if (!clock_read || !failed(pending[i], pause.now(), check_store)) {
        ++i;
        continue;
      }
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      pause.reset();
    }
  }
  for (Pending& rest : pending) give_up(rest, absl::AbortedError("this rank has left the group"));
}

bool MpiMessages::failed(Pending& pending, absl::Time now, bool check_store) {
  const bool late = now >= pending.deadline;
  bool lost = false;
  if (!late && check_store && pending.peer >= 0 && member_->witness().has_left(pending.peer)) {
    // A message that the peer sent before it left may still arrive: it has time until the next check.
    lost = pending.orphaned;
    pending.orphaned = true;
  }
  if (!late && !lost) return false;
  const std::string what =
      absl::StrCat(pending.received.has_value() ? "no message received from " : "message not received by ",
                   pending.peer < 0 ? std::string("any rank") : absl::StrCat("rank ", pending.peer), ", tag ",
                   pending.tag);
  give_up(pending,
          member_->break_with(late ? absl::DeadlineExceededError(what + ": the deadline has passed")
                                   : absl::UnavailableError(what + ": the rank has left the group")));
  return true;
}

void MpiMessages::give_up(Pending& pending, const absl::Status& reason) {
  // Open MPI can cancel a receive, but not a send. After a receive has been cancelled, MPI does not write to
  // its tensor. Otherwise the tensor must stay alive until the process ends.
  int done = 0;
  if (pending.received.has_value()) {
    (void)member_->runtime().call("MPI_Cancel", [&] { return MPI_Cancel(&pending.request); });
    (void)member_->runtime().call("MPI_Test",
                                  [&] { return MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE); });
  }
  // MPI may still use the memory. A tensor that was freed would be overwritten under its next owner.
  if (done == 0) member_->abandon({pending.request}, {pending.tensor});
  complete(pending, reason);
}

}  // namespace gradwire::collectives
