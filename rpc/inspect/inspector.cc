#include "gradwire/rpc/inspect/inspector.h"

#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/process/host.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/inspect/readings.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/membership/shared_id.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

void add(google::protobuf::RepeatedPtrField<proto::NamedNumber>& numbers, const char* name, int64_t value) {
  proto::NamedNumber& number = *numbers.Add();
  number.set_name(name);
  number.set_value(value);
}

// The memory of this process that is in use, in bytes; 0 if the system does not say it.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  return file >> pages >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

Inspector::Inspector(Sources sources) : sources_(std::move(sources)), started_(Clock::system().now()) {}

absl::Status Inspector::may_observe(const std::string& name) {
  if (sources_.runtime.policy == nullptr) return absl::OkStatus();
  // An observer has no incarnation, so it never passes as this worker itself.
  return sources_.runtime.policy->check_service({name, -1, 0}, "inspect");
}

absl::StatusOr<std::string> Inspector::inspect(const std::string& body) {
  proto::InspectRequest request;
  if (!request.ParseFromString(body)) {
    return absl::InvalidArgumentError("malformed request of an observer: expected an InspectRequest");
  }
  if (request.has_flight()) return flight(request.flight()).SerializeAsString();
  // Long names may make an answer too large. Fewer entries then fit.
  uint32_t most = entries_of(request.most());
  std::string answer = state(most).SerializeAsString();
  while (answer.size() > kMaxInspectionBytes && most > 1) {
    most /= 2;
    answer = state(most).SerializeAsString();
  }
  return answer;
}

proto::AgentState Inspector::state(uint32_t most) const {
  const absl::Time began = Clock::system().now();
  proto::AgentState state;
  read_process(state);
  state.set_read_at_us(absl::ToInt64Microseconds(began - absl::UnixEpoch()));
  state.set_wall_us(absl::ToUnixMicros(absl::Now()));
  state.set_uptime_us(absl::ToInt64Microseconds(began - started_));
  read_peers(sources_.peers, sources_.runtime.options.flow, most, began, state);
  read_calls(sources_.open_calls(), sources_.server.turn_waits(), most, began, state);
  read_rrefs(sources_.rrefs.driver(), most, began, state);
  read_numbers(state);
  read_store(began, state);
  read_groups(most, state);
  for (const auto& extension : sources_.runtime.extensions) extension->inspect(most, state);
  state.set_reading_us(absl::ToInt64Microseconds(Clock::system().now() - began));
  return state;
}

proto::AgentState Inspector::flight(const proto::FlightQuestion& question) const {
  const absl::Time began = Clock::system().now();
  proto::AgentState state;
  read_process(state);
  state.set_read_at_us(absl::ToInt64Microseconds(began - absl::UnixEpoch()));
  read_flight(sources_.runtime, sources_.peers, question, *state.mutable_flight());
  state.set_reading_us(absl::ToInt64Microseconds(Clock::system().now() - began));
  return state;
}

void Inspector::read_process(proto::AgentState& state) const {
  const Worker& self = sources_.runtime.self;
  state.set_name(self.name);
  state.set_id(shared_id(self));
  state.set_incarnation(self.incarnation);
  state.set_pid(getpid());
  state.set_host(std::string(cut_name(host_name())));
  state.set_boot(boot_id());
}

void Inspector::read_numbers(proto::AgentState& state) const {
  sources_.tables().each([&](const char* name, std::size_t count) {
    if (count > 0) add(*state.mutable_tables(), name, static_cast<int64_t>(count));
  });
  const AgentStatistics statistics = sources_.statistics();
  auto& numbers = *state.mutable_statistics();
  const auto counter = [&](const char* name, uint64_t value) {
    add(numbers, name, static_cast<int64_t>(value));
  };
  counter("calls_made", statistics.calls_made);
  counter("calls_failed", statistics.calls_failed);
  counter("calls_repeated", statistics.calls_repeated);
  counter("calls_served", statistics.calls_served);
  counter("calls_denied", statistics.calls_denied);
  counter("bytes_sent", statistics.bytes_sent);
  counter("bytes_received", statistics.bytes_received);
  counter("late_answers", statistics.late_answers);
  add(numbers, "call_p50_us", absl::ToInt64Microseconds(statistics.call_p50));
  add(numbers, "call_p99_us", absl::ToInt64Microseconds(statistics.call_p99));
  add(numbers, "resident_bytes", resident_bytes());
  if (sources_.runtime.metrics == nullptr) return;
  // Counters, so that a reader computes the quantiles of the time between two readings.
  const metrics::HistogramValues calls = sources_.runtime.metrics->total(metrics::Metric::kCallSeconds);
  for (std::size_t bucket = 0; bucket < metrics::kBuckets; ++bucket) {
    if (calls.counts[bucket] == 0) continue;
    add(numbers, absl::StrCat(kCallBucket, bucket).c_str(), static_cast<int64_t>(calls.counts[bucket]));
  }
}

void Inspector::read_store(absl::Time now, proto::AgentState& state) const {
  const store::StoreTimes::View view = sources_.store.view(now);
  if (view.store.empty()) return;
  proto::StoreState& out = *state.mutable_store();
  out.set_description(std::string(cut_name(view.store)));
  out.set_calls(static_cast<uint32_t>(view.calls));
  out.set_mean_us(absl::ToInt64Microseconds(view.mean));
  out.set_slowest_us(absl::ToInt64Microseconds(view.slowest));
  out.set_slowest_operation(view.slowest_operation);
  out.set_open_us(view.open_operation.empty() ? -1 : absl::ToInt64Microseconds(view.open));
  out.set_open_operation(view.open_operation);
}

}  // namespace gradwire::rpc
