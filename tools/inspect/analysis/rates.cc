#include "gradwire/tools/inspect/analysis/rates.h"

namespace gradwire::inspect {
namespace {

struct Bytes {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// By peer and number of the link: a link that has ended and a new one are never compared.
std::map<std::pair<uint64_t, uint64_t>, Bytes> bytes_of(const proto::AgentState& state) {
  std::map<std::pair<uint64_t, uint64_t>, Bytes> bytes;
  for (const proto::PeerState& peer : state.peers()) {
    for (const proto::LinkState& link : peer.links()) {
      bytes[{peer.incarnation(), link.number()}] = {link.bytes_sent(), link.bytes_received()};
    }
  }
  return bytes;
}

double per_second(int64_t before, int64_t now, double seconds) {
  return now < before ? 0 : static_cast<double>(now - before) / seconds;
}

double per_second(uint64_t before, uint64_t now, double seconds) {
  return now < before ? 0 : static_cast<double>(now - before) / seconds;
}

}  // namespace

int64_t number_of(const google::protobuf::RepeatedPtrField<proto::NamedNumber>& numbers, const char* name) {
  for (const proto::NamedNumber& number : numbers) {
    if (number.name() == name) return number.value();
  }
  return 0;
}

Rates compare(const JobView& before, const JobView& now) {
  Rates rates;
  for (const WorkerView& worker : now.workers) {
    const uint64_t self = worker.record.incarnation();
    const WorkerView* earlier = before.find(self);
    if (!worker.answered() || earlier == nullptr || !earlier->answered()) continue;
    const proto::AgentState &old_state = earlier->state, &state = worker.state;
    const double seconds = static_cast<double>(state.read_at_us() - old_state.read_at_us()) / 1e6;
    if (seconds <= 0) continue;
    const auto counter = [&](const char* name) {
      return per_second(number_of(old_state.statistics(), name), number_of(state.statistics(), name),
                        seconds);
    };
    rates.calls_made[self] = counter("calls_made");
    rates.calls_served[self] = counter("calls_served");
    const auto old_bytes = bytes_of(old_state);
    for (const auto& [link, bytes] : bytes_of(state)) {
      const auto found = old_bytes.find(link);
      if (found == old_bytes.end()) continue;
      Rates::Traffic& traffic = rates.links[{self, link.first}];
      traffic.sent += per_second(found->second.sent, bytes.sent, seconds);
      traffic.received += per_second(found->second.received, bytes.received, seconds);
    }
  }
  return rates;
}

}  // namespace gradwire::inspect
