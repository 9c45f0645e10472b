#include "gradwire/tests/chaos/faults.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/transport/fault_injection.h"

namespace chaos {
namespace {

using gradwire::transport::Direction;
using gradwire::transport::Fault;
using gradwire::transport::FaultPolicy;
using gradwire::transport::FaultRates;
using gradwire::transport::Message;

bool may_be_lost(const Message& message, bool lose_services) {
  gradwire::proto::Envelope envelope;
  if (!envelope.ParseFromString(message.header)) return false;
  if (envelope.has_request()) {
    const gradwire::proto::Request& request = envelope.request();
    return request.arguments().references_size() == 0 && !request.has_result_rref() &&
           (lose_services || !request.has_service());
  }
  if (!envelope.has_response()) return false;
  const gradwire::proto::Response& response = envelope.response();
  // Only answers to calls of the program have a value. Answers of services do not.
  return response.result().references_size() == 0 && (lose_services || response.result().values_size() > 0);
}

// The number of the message before which `worker` kills itself, or -1.
int message_of_death(const Plan& plan, int worker) {
  for (const Plan::Kill& kill : plan.kills) {
    if (kill.worker == worker && kill.when == Plan::Kill::When::kAtMessage) return kill.message;
  }
  return -1;
}

}  // namespace

void FaultSchedule::begin() {
  gradwire::MutexLock lock(mutex_);
  active_ = true;
}

void FaultSchedule::end() {
  gradwire::MutexLock lock(mutex_);
  active_ = false;
}

bool FaultSchedule::admits_fault(Direction direction) {
  gradwire::MutexLock lock(mutex_);
  if (!active_) return false;
  // Under the lock: end() in another thread must not return while this thread kills the process.
  if (direction == Direction::kOutgoing && sent_++ == die_at_message_) ::kill(::getpid(), SIGKILL);
  return true;
}

Faults::Faults(const Plan& plan, int worker, bool lose_services)
    : plan_(plan),
      worker_(worker),
      lose_services_(lose_services),
      schedule_(std::make_shared<FaultSchedule>(message_of_death(plan, worker))) {}

bool Faults::any() const { return plan_.faulty() || schedule_->kills(); }

std::unique_ptr<gradwire::transport::Transport> Faults::wrap(
    std::unique_ptr<gradwire::transport::Transport> transport) {
  const uint64_t seed = plan_.seed * 16 + static_cast<uint64_t>(worker_);
  FaultRates losses;
  losses.drop = plan_.lose;
  losses.applies_to = [services = lose_services_](Direction, const Message& message) {
    return may_be_lost(message, services);
  };
  FaultRates others;
  others.cut = plan_.cut;
  others.delay = plan_.delay;
  auto policy = [schedule = schedule_, lose = gradwire::transport::seeded_fault_policy(seed, losses),
                 may_lose = plan_.lose > 0,
                 other = gradwire::transport::seeded_fault_policy(seed + 8, others)](
                    Direction direction, const Message& message) -> Fault {
    if (!schedule->admits_fault(direction)) return {};
    if (may_lose) {
      if (Fault fault = lose(direction, message); fault.kind != Fault::Kind::kDeliver) return fault;
    }
    return other(direction, message);
  };
  return gradwire::transport::make_fault_injecting_transport(std::move(transport), std::move(policy));
}

}  // namespace chaos
