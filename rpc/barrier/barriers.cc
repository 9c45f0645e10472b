#include "gradwire/rpc/barrier/barriers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

constexpr uint32_t kArrive = 12;  // proto/rpc.proto
// How long the leader waits for the others after a member has given up without an answer.
constexpr absl::Duration kAfterGivingUp = absl::Seconds(5);

}  // namespace

absl::Status Barriers::wait(std::vector<Worker> members, absl::Time deadline) {
  std::sort(members.begin(), members.end(), [](const Worker& a, const Worker& b) { return a.id < b.id; });
  const std::string listed = absl::StrCat(
      "rpc_barrier of ", absl::StrJoin(members, ", ", [](std::string* out, const Worker& worker) {
        absl::StrAppend(out, "\"", worker.name, "\"");
      }));
  BarrierTable::Members incarnations;
  for (const Worker& member : members) incarnations.push_back(member.incarnation);
  std::sort(incarnations.begin(), incarnations.end());
  if (std::adjacent_find(incarnations.begin(), incarnations.end()) != incarnations.end()) {
    return absl::InvalidArgumentError(absl::StrCat(listed, ": a worker is named twice"));
  }
  if (!std::binary_search(incarnations.begin(), incarnations.end(), host_.self().incarnation)) {
    return absl::InvalidArgumentError(absl::StrCat(listed, ": this worker, \"", host_.self().name,
                                                   "\", is not among them, but only they may wait for it"));
  }
  proto::Arrive arrive;
  arrive.mutable_members()->Add(incarnations.begin(), incarnations.end());
  {
    MutexLock lock(mutex_);
    arrive.set_number(numbers_[incarnations]++);
  }
  const Worker& leader = members.front();
  const absl::StatusOr<ServiceReply> reply =
      host_.call_service(leader, kArrive, arrive.SerializeAsString(), nullptr, {deadline, /*repeat=*/true})
          .result();
  if (!reply.ok()) {
    // The Arrive may not have reached the leader: the deadline may have passed before it was sent. The others
    // would then wait until their own deadlines, and those may be infinite. This worker has counted the
    // barrier, so the leader must learn of it. A repetition with a short deadline ends the barrier soon. It
    // fails at once if this agent or the leader has ended.
    (void)host_.call_service(leader, kArrive, arrive.SerializeAsString(), nullptr,
                             {Clock::system().now() + kAfterGivingUp, /*repeat=*/true});
    return with_context(reply.status(), listed);
  }
  proto::StatusValue failure;
  if (!failure.ParseFromString(reply->body)) {
    return absl::InvalidArgumentError(
        absl::StrCat(listed, ": malformed answer of worker \"", leader.name, "\""));
  }
  return with_context(status_from_proto(failure), listed);
}

bool Barriers::serves(uint32_t service) const { return service == kArrive; }

void Barriers::serve(ServiceCall call) {
  proto::Arrive arrive;
  BarrierTable::Members members;
  if (arrive.ParseFromString(call.body)) members.assign(arrive.members().begin(), arrive.members().end());
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  const auto has = [&members](const Worker& worker) {
    return std::binary_search(members.begin(), members.end(), worker.incarnation);
  };
  if (!ascending || !has(call.from) || !has(host_.self())) {
    call.reply(absl::InvalidArgumentError(
        absl::StrCat("malformed Arrive message from worker \"", call.from.name, "\"")));
    return;
  }
  std::vector<Worker> workers;
  for (const uint64_t member : members) {
    absl::StatusOr<Worker> worker = host_.find_worker_by_incarnation(member);
    const absl::Status alive = worker.ok() ? host_.worker_status(*worker) : worker.status();
    if (!alive.ok()) {
      run({{std::move(call.reply), alive}});
      return;
    }
    workers.push_back(*std::move(worker));
  }
  Replies replies;
  uint64_t ticket = 0;
  absl::Status stopped;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    if (stopped.ok()) {
      ticket = next_ticket_++;
      waiting_[ticket].reply = std::move(call.reply);
      replies = take_locked(table_.arrive(members, arrive.number(), call.from.incarnation, ticket));
    }
  }
  if (!stopped.ok()) {
    call.reply(std::move(stopped));
    return;
  }
  run(std::move(replies));
  watch(workers, call.from);
  // A member that was lost before its arrival was in the table was not removed from there.
  for (const Worker& worker : workers) {
    if (const absl::Status alive = host_.worker_status(worker); !alive.ok()) worker_lost(worker, alive);
  }
  if (ticket == 0 || call.deadline == absl::InfiniteFuture()) return;
  const absl::Time now = Clock::system().now();
  const absl::Duration left = call.deadline - now;
  // The agent, and so this object, may be gone when the timer runs.
  const uint64_t timer = host_.timers().schedule(
      answer_by(now, call.deadline), [this, weak = host_.weak_agent(), ticket, from = call.from, left] {
        if (const std::shared_ptr<Agent> alive = weak.lock()) expire(ticket, from, left);
      });
  MutexLock lock(mutex_);
  if (const auto member = waiting_.find(ticket); member != waiting_.end()) {
    member->second.timer = timer;
  } else {
    host_.timers().cancel(timer);
  }
}

// The end of a worker is noticed at its connection. A member that has not come may have no connection to this
// worker yet, so ask each member once whether it is alive. The question is repeated until it is answered, or
// the worker is lost.
void Barriers::watch(const std::vector<Worker>& members, const Worker& from) {
  std::vector<Worker> unwatched;
  {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return;
    watched_.insert(host_.self().incarnation);
    watched_.insert(from.incarnation);
    for (const Worker& member : members) {
      if (watched_.insert(member.incarnation).second) unwatched.push_back(member);
    }
  }
  for (const Worker& member : unwatched) {
    (void)host_.call_service(member, kPing, "", nullptr, {absl::InfiniteFuture(), /*repeat=*/true});
  }
}

void Barriers::expire(uint64_t ticket, const Worker& from, absl::Duration waited) {
  BarrierTable::Members missing;
  {
    MutexLock lock(mutex_);
    missing = table_.missing(ticket);
  }
  // The barrier has ended.
  if (missing.empty()) return;
  const std::string absent = names(missing);
  const std::string time = absl::FormatDuration(absl::Ceil(waited, absl::Milliseconds(1)));
  Replies replies;
  {
    MutexLock lock(mutex_);
    replies = take_locked(table_.give_up(
        ticket, absl::DeadlineExceededError(absl::StrCat("waited ", time, " for ", absent)),
        absl::DeadlineExceededError(
            absl::StrCat("worker \"", from.name, "\" gave up after it had waited ", time, " for ", absent))));
  }
  run(std::move(replies));
}

std::string Barriers::names(const BarrierTable::Members& members) const {
  std::vector<Worker> workers;
  for (const uint64_t member : members) {
    absl::StatusOr<Worker> worker = host_.find_worker_by_incarnation(member);
    if (worker.ok()) workers.push_back(*std::move(worker));
  }
  std::sort(workers.begin(), workers.end(), [](const Worker& a, const Worker& b) { return a.id < b.id; });
  return absl::StrJoin(workers, ", ", [](std::string* out, const Worker& worker) {
    absl::StrAppend(out, "worker \"", worker.name, "\"");
  });
}

Barriers::Replies Barriers::take_locked(BarrierTable::Answers answers) {
  Replies taken;
  for (BarrierTable::Answer& answer : answers) {
    const auto member = waiting_.find(answer.ticket);
    if (member == waiting_.end()) continue;
    if (member->second.timer != 0) host_.timers().cancel(member->second.timer);
    taken.emplace_back(std::move(member->second.reply), std::move(answer.status));
    waiting_.erase(member);
  }
  return taken;
}

void Barriers::run(Replies replies) {
  for (auto& [reply, status] : replies) {
    ServiceReply answer;
    if (!status.ok()) {
      proto::StatusValue value;
      status_to_proto(status, value);
      answer.body = value.SerializeAsString();
    }
    reply(std::move(answer));
  }
}

void Barriers::worker_lost(const Worker& worker, const absl::Status& reason) {
  Replies replies;
  {
    MutexLock lock(mutex_);
    replies = take_locked(table_.lose(worker.incarnation, reason));
    watched_.erase(worker.incarnation);
    std::erase_if(numbers_, [&worker](const auto& entry) {
      return std::binary_search(entry.first.begin(), entry.first.end(), worker.incarnation);
    });
  }
  run(std::move(replies));
}

bool Barriers::idle() const {
  MutexLock lock(mutex_);
  return table_.waiting() == 0;
}

// The replies are errors of the messages, and not results of the barriers: the server translates them for the
// other members, which lose their leader (AgentRuntime::for_caller).
void Barriers::shutdown(const absl::Status& reason) {
  Replies replies;
  {
    MutexLock lock(mutex_);
    stopped_ = reason;
    replies = take_locked(table_.end_all(reason));
  }
  for (auto& [reply, status] : replies) reply(std::move(status));
}

}  // namespace gradwire::rpc
