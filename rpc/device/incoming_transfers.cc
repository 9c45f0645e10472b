#include "gradwire/rpc/device/incoming_transfers.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/log.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/device/transfer_table.h"
#include "gradwire/rpc/link/goodbye.h"

namespace gradwire::rpc {

void ArrivedTransfers::arrive(uint64_t sender, uint64_t number) {
  const auto refused = refused_.find(sender);
  const bool reclaimed = refused != refused_.end() && refused->second.contains(number);
  // An honest sender uses a number once. The first message with it decides.
  transfers_.try_emplace({sender, number}, reclaimed ? State::kRefused : State::kWaiting);
}

ArrivedTransfers::Read ArrivedTransfers::begin_read(uint64_t sender, uint64_t number) {
  // Messages that arrive after close() are not in the table.
  if (closed_) return Read::kRefused;
  const auto found = transfers_.find({sender, number});
  if (found == transfers_.end() || found->second == State::kReading) return Read::kUnknown;
  if (found->second == State::kRefused || lost_.contains(sender)) return Read::kRefused;
  found->second = State::kReading;
  ++reading_;
  return Read::kAllowed;
}

std::vector<uint64_t> ArrivedTransfers::end_read(uint64_t sender, uint64_t number) {
  transfers_.erase({sender, number});
  --reading_;
  std::vector<uint64_t> answers;
  for (auto& [token, waiting] : reclaims_) {
    if (waiting.sender == sender && waiting.reading.erase(number) > 0 && waiting.reading.empty())
      answers.push_back(token);
  }
  for (const uint64_t token : answers) reclaims_.erase(token);
  return answers;
}

bool ArrivedTransfers::drop(uint64_t sender, uint64_t number) {
  const auto found = transfers_.find({sender, number});
  if (found == transfers_.end() || found->second == State::kReading) return false;
  const bool reports = found->second == State::kWaiting && !lost_.contains(sender);
  transfers_.erase(found);
  return reports;
}

ArrivedTransfers::Reclaim ArrivedTransfers::reclaim(uint64_t sender, const std::vector<uint64_t>& numbers,
                                                    bool settled, uint64_t token) {
  Waiting waiting{sender, {}};
  std::vector<uint64_t> unknown;
  for (const uint64_t number : numbers) {
    const auto found = transfers_.find({sender, number});
    if (found == transfers_.end()) {
      unknown.push_back(number);
    } else if (found->second == State::kReading) {
      waiting.reading.insert(number);
    } else {
      found->second = State::kRefused;
    }
  }
  // A transfer that has ended here is refused too, which has no effect. Nothing of a lost sender is read, and
  // settle() is not called for it any more.
  if (!settled && !unknown.empty() && !lost_.contains(sender)) {
    HashSet<uint64_t>& refused = refused_[sender];
    if (refused.size() + unknown.size() > kMaxRefused) return Reclaim::kTooMany;
    refused.insert(unknown.begin(), unknown.end());
  }
  if (waiting.reading.empty()) return Reclaim::kAnswer;
  reclaims_.emplace(token, std::move(waiting));
  return Reclaim::kLater;
}

void ArrivedTransfers::settle(uint64_t sender) { refused_.erase(sender); }

std::vector<uint64_t> ArrivedTransfers::lose(uint64_t sender) {
  lost_.insert(sender);
  refused_.erase(sender);
  std::vector<uint64_t> answers;
  for (const auto& [token, waiting] : reclaims_) {
    if (waiting.sender == sender) answers.push_back(token);
  }
  for (const uint64_t token : answers) reclaims_.erase(token);
  return answers;
}

std::size_t ArrivedTransfers::remembered() const {
  std::size_t size = 0;
  for (const auto& [sender, numbers] : refused_) size += numbers.size();
  return size;
}

namespace {

// Time for which shutdown() waits for threads that enqueue copies. They wait for nothing themselves.
constexpr absl::Duration kReadTime = absl::Seconds(10);

}  // namespace

std::shared_ptr<void> IncomingTransfers::arrived(uint64_t worker, uint64_t number) {
  {
    MutexLock lock(mutex_);
    if (closed_) return nullptr;
    transfers_.arrive(worker, number);
  }
  return std::shared_ptr<void>(
      nullptr, [self = shared_from_this(), worker, number](void*) { self->drop(worker, number); });
}

void IncomingTransfers::drop(uint64_t worker, uint64_t number) {
  bool schedule = false;
  {
    MutexLock lock(mutex_);
    if (transfers_.drop(worker, number)) schedule = report_locked(worker, number);
  }
  if (schedule) schedule_report(worker);
}

absl::Status IncomingTransfers::begin_read(uint64_t worker, uint64_t number) {
  MutexLock lock(mutex_);
  switch (transfers_.begin_read(worker, number)) {
    case ArrivedTransfers::Read::kAllowed:
      return absl::OkStatus();
    case ArrivedTransfers::Read::kRefused:
      return absl::UnavailableError(
          "the tensors of the message are gone: their sender is lost, or has taken them back because a "
          "connection broke, or this worker has shut down");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("malformed message: the transfer ", number, " was read before"));
  }
}

void IncomingTransfers::end_read(uint64_t worker, uint64_t number) {
  bool schedule = false;
  std::vector<Answer> answers;
  {
    MutexLock lock(mutex_);
    answers = take_locked(transfers_.end_read(worker, number));
    schedule = report_locked(worker, number);
    if (transfers_.reading() == 0) read_.notify_all();
  }
  for (const Answer& answer : answers) answer(ServiceReply());
  if (schedule) schedule_report(worker);
}

void IncomingTransfers::reclaim(const ServiceCall& call) {
  proto::TransfersReclaim message;
  std::optional<Departures> sent;
  if (message.ParseFromString(call.body)) sent = from_proto(message.sent());
  if (!sent || message.numbers_size() > static_cast<int>(TransferTable::kMaxOpen)) {
    call.reply(absl::InvalidArgumentError("malformed TransfersReclaim"));
    return;
  }
  const uint64_t from = call.from.incarnation;
  ArrivedTransfers::Reclaim result;
  {
    MutexLock lock(mutex_);
    // The arrival_order must not change between this question and the refusals that are remembered because of
    // the answer, so it is asked under the lock, as in settled().
    const bool settled = arrival_order_.require(from, *sent);
    const uint64_t token = next_token_++;
    result = transfers_.reclaim(from, {message.numbers().begin(), message.numbers().end()}, settled, token);
    if (settled) transfers_.settle(from);
    if (result == ArrivedTransfers::Reclaim::kLater) answers_.emplace(token, call.reply);
  }
  if (result == ArrivedTransfers::Reclaim::kAnswer) call.reply(ServiceReply());
  if (result == ArrivedTransfers::Reclaim::kTooMany) {
    call.reply(absl::InvalidArgumentError(
        absl::StrCat("TransfersReclaim names too many transfers that have not arrived: the limit is ",
                     ArrivedTransfers::kMaxRefused)));
  }
}

void IncomingTransfers::settled(uint64_t worker) {
  MutexLock lock(mutex_);
  if (arrival_order_.settled(worker)) transfers_.settle(worker);
}

void IncomingTransfers::lose(uint64_t worker) {
  std::vector<Answer> answers;
  MutexLock lock(mutex_);
  // Nobody waits for these answers. They are destroyed after the lock is released.
  answers = take_locked(transfers_.lose(worker));
  unreported_.erase(worker);
}

void IncomingTransfers::shutdown() {
  HashMap<uint64_t, Answer> answers;
  MutexLock lock(mutex_);
  closed_ = true;
  transfers_.close();
  unreported_.clear();
  answers.swap(answers_);
  const absl::Time deadline = Clock::system().now() + kReadTime;
  while (transfers_.reading() > 0) {
    const absl::Duration left = deadline - Clock::system().now();
    if (left <= absl::ZeroDuration()) {
      log(LogLevel::kError, "a thread still reads memory of another process ",
          absl::FormatDuration(kReadTime), " after the shutdown began");
      return;
    }
    read_.wait_for(mutex_, left);
  }
}

bool IncomingTransfers::report_locked(uint64_t worker, uint64_t number) {
  if (closed_) return false;
  std::vector<uint64_t>& numbers = unreported_[worker];
  numbers.push_back(number);
  return numbers.size() == 1;
}

void IncomingTransfers::schedule_report(uint64_t worker) {
  TimerQueue& timers = host_.timers();
  timers.schedule(timers.clock().now() + kReportAfter, [weak = weak_from_this(), worker] {
    const std::shared_ptr<IncomingTransfers> self = weak.lock();
    if (self == nullptr) return;
    // On the executor, because sending may connect. After shutdown it refuses the task, and nothing is
    // reported any more.
    static TaskCost* const cost = new TaskCost;
    Executor::Task task = [self, worker] { self->send_report(worker); };
    (void)self->host_.executor()->post_clean(task, cost);
  });
}

void IncomingTransfers::send_report(uint64_t worker) {
  const absl::StatusOr<Worker> to = host_.find_worker_by_incarnation(worker);
  proto::TransfersConsumed report;
  bool more = false;
  {
    MutexLock lock(mutex_);
    const auto found = unreported_.find(worker);
    if (closed_ || found == unreported_.end()) return;
    std::vector<uint64_t>& numbers = found->second;
    while (!numbers.empty() && report.numbers_size() < static_cast<int>(TransferTable::kMaxOpen)) {
      report.add_numbers(numbers.back());
      numbers.pop_back();
    }
    more = !numbers.empty();
    if (!more || !to.ok()) unreported_.erase(found);
    // A sender that is not known any more is lost.
    if (!to.ok()) return;
    reporting_ += static_cast<std::size_t>(report.numbers_size());
  }
  host_
      .call_service(*to, kTransfersConsumed, report.SerializeAsString(), nullptr,
                    {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline(
          [self = shared_from_this(), size = report.numbers_size()](const absl::StatusOr<ServiceReply>&) {
            MutexLock lock(self->mutex_);
            self->reporting_ -= static_cast<std::size_t>(size);
          });
  if (more) send_report(worker);
}

std::vector<IncomingTransfers::Answer> IncomingTransfers::take_locked(const std::vector<uint64_t>& tokens) {
  std::vector<Answer> answers;
  for (const uint64_t token : tokens) {
    const auto found = answers_.find(token);
    if (found == answers_.end()) continue;
    answers.push_back(std::move(found->second));
    answers_.erase(found);
  }
  return answers;
}

std::size_t IncomingTransfers::arrived() const {
  MutexLock lock(mutex_);
  return transfers_.arrived();
}

std::size_t IncomingTransfers::refused() const {
  MutexLock lock(mutex_);
  return transfers_.remembered();
}

std::size_t IncomingTransfers::unreported() const {
  MutexLock lock(mutex_);
  std::size_t size = reporting_;
  for (const auto& [worker, numbers] : unreported_) size += numbers.size();
  return size;
}

}  // namespace gradwire::rpc
