#include "gradwire/transport/tcp/admission/admission.h"

namespace gradwire::transport {

Admission::Outcome Admission::arrive(const std::string& host, absl::Time now) {
  HostEntry* const entry = &*hosts_.try_emplace(host).first;
  Outcome outcome;
  const bool full =
      arrivals_.size() >= bounds_.arrivals || entry->second.arrivals >= bounds_.arrivals_per_host;
  if (full) {
    outcome.replaced = choose_replaced(*entry, now);
    if (outcome.replaced == 0) {
      ++refused_;
      forget_if_unused(entry);
      return outcome;
    }
    ++replaced_;
  }
  outcome.admitted = ++last_id_;
  ++entry->second.arrivals;
  arrivals_.emplace(outcome.admitted, Waiting{entry, now});
  // Only now, because it may remove the entry of a host that has nothing else.
  leave(outcome.replaced);
  return outcome;
}

Admission::Id Admission::choose_replaced(const HostEntry& host, absl::Time now) const {
  if (host.second.arrivals >= bounds_.arrivals_per_host) {
    const Id longest = arrival_of(host, /*longest=*/true);
    return is_protected(longest, now) ? 0 : longest;
  }
  const HostEntry* most = &host;
  for (const auto& [id, arrival] : arrivals_) {
    if (arrival.host->second.arrivals > most->second.arrivals) most = arrival.host;
  }
  const Id longest = arrival_of(*most, /*longest=*/true);
  if (!is_protected(longest, now)) return longest;
  // All arrivals of that host are new. The newest has the least to lose.
  return most->second.arrivals >= host.second.arrivals + 2 ? arrival_of(*most, /*longest=*/false) : 0;
}

Admission::Id Admission::arrival_of(const HostEntry& host, bool longest) const {
  Id found = 0;
  for (const auto& [id, arrival] : arrivals_) {
    if (arrival.host != &host) continue;
    found = id;
    if (longest) break;
  }
  return found;
}

// No arrival counts as protected: it cannot be replaced.
bool Admission::is_protected(Id id, absl::Time now) const {
  const auto found = arrivals_.find(id);
  return found == arrivals_.end() || now - found->second.since < kProtected;
}

bool Admission::may_connect(Id id) const {
  const auto found = arrivals_.find(id);
  return found != arrivals_.end() && found->second.host->second.connections < bounds_.connections_per_host;
}

void Admission::connect(Id id) {
  const auto found = arrivals_.find(id);
  if (found == arrivals_.end()) return;
  HostEntry* const host = found->second.host;
  arrivals_.erase(found);
  --host->second.arrivals;
  ++host->second.connections;
  connections_.emplace(id, host);
}

void Admission::leave(Id id) {
  HostEntry* host = nullptr;
  if (const auto found = arrivals_.find(id); found != arrivals_.end()) {
    host = found->second.host;
    --host->second.arrivals;
    arrivals_.erase(found);
  } else if (const auto connection = connections_.find(id); connection != connections_.end()) {
    host = connection->second;
    --host->second.connections;
    connections_.erase(connection);
  }
  if (host != nullptr) forget_if_unused(host);
}

void Admission::forget_if_unused(HostEntry* host) {
  // A copy of the key, because the entry owns it.
  if (host->second.arrivals + host->second.connections == 0) hosts_.erase(std::string(host->first));
}

}  // namespace gradwire::transport
