#include "gradwire/collectives/testing/local_room.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives::testing {
namespace {

std::string name_ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::StatusOr<int> deliver(const at::Tensor& from, int src, const at::Tensor& into) {
  if (from.scalar_type() != into.scalar_type() || from.numel() != into.numel()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", src, " sent ", from.numel(), " elements of ",
                                                   c10::toString(from.scalar_type()), ", expected ",
                                                   into.numel(), " of ", c10::toString(into.scalar_type())));
  }
  if (from.nbytes() != 0) std::memcpy(into.data_ptr(), from.data_ptr(), from.nbytes());
  return src;
}

}  // namespace

Room::~Room() {
  std::thread expirer;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    expirer = std::move(expirer_);
  }
  if (expirer.joinable()) expirer.join();
}

absl::Status Room::refusal_locked() const {
  if (broken_.ok()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the group is broken: ", broken_.message()));
}

void Room::break_locked(const absl::Status& reason) {
  if (broken_.ok()) broken_ = reason;
  changed_.notify_all();
}

absl::Status Room::timeout_error_locked() {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < slots_.size(); ++rank) {
    if (!slots_[rank].has_value()) missing.push_back(static_cast<int>(rank));
  }
  return absl::DeadlineExceededError(absl::StrCat(name_ranks(missing), " did not arrive"));
}

absl::Status Room::lost_locked() const {
  std::vector<int> gone;
  for (std::size_t rank = 0; rank < slots_.size(); ++rank) {
    if (left_[rank] && !slots_[rank].has_value()) gone.push_back(static_cast<int>(rank));
  }
  if (gone.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name_ranks(gone), gone.size() == 1 ? " has left" : " have left"));
}

absl::Status Room::meet(int rank, Contribution contribution, Work work, int root, ReduceOp op,
                        absl::Time deadline) {
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(refusal_locked());
  const uint64_t mine = generation_;
  slots_[rank] = std::move(contribution);
  if (++arrived_ == slots_.size()) {
    outcome_ = absl::OkStatus();
    std::vector<Contribution> all;
    for (auto& slot : slots_) all.push_back(*std::exchange(slot, std::nullopt));
    for (std::size_t other = 1; other < all.size() && outcome_.ok(); ++other) {
      if (all[other].operation == all[0].operation) continue;
      outcome_ = absl::InvalidArgumentError(absl::StrCat("rank ", other, " called ", all[other].operation,
                                                         ", but rank 0 called ", all[0].operation));
    }
    try {
      if (outcome_.ok()) outcome_ = work(all, root, op);
    } catch (...) {
      outcome_ = status_from_exception(std::current_exception());
    }
    arrived_ = 0;
    ++generation_;
    changed_.notify_all();
    return outcome_;
  }
  changed_.notify_all();
  while (generation_ == mine && broken_.ok()) {
    if (absl::Status lost = lost_locked(); !lost.ok()) {
      break_locked(lost);
      return lost;
    }
    const absl::Time now = Clock::system().now();
    if (now >= deadline) {
      const absl::Status late = timeout_error_locked();
      break_locked(late);
      return late;
    }
    changed_.wait_for(mutex_, deadline - now);
  }
  if (generation_ != mine) return outcome_;
  return broken_;
}

Future<void> Room::send(int src, int dst, int tag, const at::Tensor& tensor) {
  std::optional<Receive> receive;
  {
    MutexLock lock(mutex_);
    if (absl::Status status = refusal_locked(); !status.ok()) return status;
    if (left_[dst]) return Future<void>(absl::UnavailableError(absl::StrCat("rank ", dst, " has left")));
    auto& waiting = inboxes_[dst].receives;
    auto found = std::find_if(waiting.begin(), waiting.end(), [src, tag](const Receive& candidate) {
      return (candidate.src < 0 || candidate.src == src) && candidate.tag == tag;
    });
    if (found == waiting.end()) {
      inboxes_[dst].messages.push_back({src, tag, tensor.detach().clone()});
    } else {
      receive = std::move(*found);
      waiting.erase(found);
    }
  }
  if (!receive.has_value()) return absl::OkStatus();
  const absl::StatusOr<int> delivered = deliver(tensor, src, receive->tensor);
  receive->done.set_result(delivered);
  return delivered.status();
}

Future<int> Room::receive(int rank, int src, int tag, at::Tensor tensor, absl::Time deadline) {
  MutexLock lock(mutex_);
  if (absl::Status status = refusal_locked(); !status.ok()) return Future<int>(status);
  auto& messages = inboxes_[rank].messages;
  auto found = std::find_if(messages.begin(), messages.end(), [src, tag](const Message& candidate) {
    return (src < 0 || candidate.src == src) && candidate.tag == tag;
  });
  if (found != messages.end()) {
    const Message message = std::move(*found);
    messages.erase(found);
    return deliver(message.tensor, message.src, tensor);
  }
  if (src >= 0 && left_[src]) {
    return Future<int>(absl::UnavailableError(absl::StrCat("rank ", src, " has left")));
  }
  Promise<int> done;
  inboxes_[rank].receives.push_back({src, tag, std::move(tensor), deadline, done});
  if (!expirer_.joinable()) expirer_ = std::thread([this] { expire(); });
  changed_.notify_all();
  return done.future();
}

void Room::expire() {
  mutex_.lock();
  while (!closing_) {
    const absl::Time now = Clock::system().now();
    absl::Time next = absl::InfiniteFuture();
    Completions late;
    for (Inbox& inbox : inboxes_) {
      for (auto it = inbox.receives.begin(); it != inbox.receives.end();) {
        if (it->deadline > now) {
          next = std::min(next, it->deadline);
          ++it;
          continue;
        }
        late.emplace_back(it->done, absl::DeadlineExceededError(
                                        absl::StrCat(it->src < 0 ? "no rank" : absl::StrCat("rank ", it->src),
                                                     it->src < 0 ? " sent" : " did not send", " in time")));
        it = inbox.receives.erase(it);
      }
    }
    if (late.empty()) {
      changed_.wait_for(mutex_, next - now);
      continue;
    }
    mutex_.unlock();
    for (auto& [promise, result] : late) promise.set_result(result);
    mutex_.lock();
  }
  mutex_.unlock();
}

void Room::fail_receives_locked(const absl::Status& reason, Completions& completions) {
  for (Inbox& inbox : inboxes_) {
    for (Receive& receive : inbox.receives) completions.emplace_back(receive.done, reason);
    inbox.receives.clear();
  }
}

void Room::abort(const absl::Status& reason) {
  Completions completions;
  {
    MutexLock lock(mutex_);
    break_locked(absl::AbortedError(reason.message()));
    fail_receives_locked(broken_, completions);
  }
  for (auto& [promise, result] : completions) promise.set_result(result);
}

void Room::leave(int rank) {
  Completions completions;
  {
    MutexLock lock(mutex_);
    left_[rank] = true;
    const absl::Status gone = absl::UnavailableError(absl::StrCat("rank ", rank, " has left"));
    for (std::size_t r = 0; r < inboxes_.size(); ++r) {
      auto& receives = inboxes_[r].receives;
      for (auto it = receives.begin(); it != receives.end();) {
        const bool mine = static_cast<int>(r) == rank;
        if (!mine && it->src != rank) {
          ++it;
          continue;
        }
        completions.emplace_back(it->done, mine ? absl::AbortedError("this rank has left") : gone);
        it = receives.erase(it);
      }
    }
    changed_.notify_all();
  }
  for (auto& [promise, result] : completions) promise.set_result(result);
}

}  // namespace gradwire::collectives::testing
