// Workers that do not answer, and what is wrong between two workers.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

bool offers(const proto::WorkerRecord& worker, const std::string& transport) {
  return std::any_of(worker.addresses().begin(), worker.addresses().end(),
                     [&](const proto::Address& address) { return address.transport() == transport; });
}

// The other workers that suspect this one.
std::vector<std::string> suspected_by(const JobView& job, uint64_t incarnation) {
  std::vector<std::string> names;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::PeerState& peer : worker.state.peers()) {
      if (peer.incarnation() == incarnation && peer.state() == proto::PeerState::SUSPECT) {
        names.push_back(in_quotes(worker.record.name()));
      }
    }
  }
  return names;
}

bool uses(const proto::PeerState& peer, const std::string& transport) {
  return std::any_of(peer.links().begin(), peer.links().end(), [&](const proto::LinkState& link) {
    return link.in_use() && link.transport() == transport;
  });
}

// Why a connection between two workers of one host uses tcp; empty if there is nothing to say.
std::string why_tcp(const WorkerView& worker, const WorkerView& other, const proto::PeerState& peer,
                    uint64_t& culprit) {
  culprit = other.record.incarnation();
  for (const proto::GivenUpTransport& given_up : peer.given_up()) {
    if (given_up.transport() != "shm") continue;
    return absl::StrCat("shm failed: ", printable(given_up.reason()));
  }
  const bool here = offers(worker.record, "shm"), there = offers(other.record, "shm");
  if (here && there) return "";
  if (!here && !there) return "";
  if (!here) culprit = worker.record.incarnation();
  return absl::StrCat(
      in_quotes((here ? other : worker).record.name()),
      " does not offer shm: it leaves it out of RpcBackendOptions::transports, or it does not "
      "work in its container");
}

}  // namespace

std::vector<Finding> find_workers(const JobView& job, const Thresholds&) {
  std::vector<Finding> findings;
  for (const WorkerView& worker : job.workers) {
    const std::string name = in_quotes(worker.record.name());
    if (worker.standing == WorkerView::Standing::kDead) {
      Finding& finding = findings.emplace_back();
      finding.kind = Finding::Kind::kLost;
      finding.title = absl::StrCat("worker ", name, " is dead: ", printable(worker.reason));
      finding.culprits = {worker.record.incarnation()};
      continue;
    }
    if (!worker.is_member()) continue;
    const std::vector<std::string> suspects = suspected_by(job, worker.record.incarnation());
    if (worker.status.ok() && suspects.empty()) continue;
    Finding& finding = findings.emplace_back();
    finding.kind = Finding::Kind::kUnresponsive;
    finding.culprits = {worker.record.incarnation()};
    finding.title =
        worker.status.ok()
            ? absl::StrCat("worker ", name, " answers inspect, but not all other workers")
            : absl::StrCat("worker ", name, " does not answer: ", printable(worker.status.message()));
    if (worker.stopped_pid != 0) {
      finding.title = absl::StrCat("paused worker: ", name, " does not answer, because its process ",
                                   worker.stopped_pid, " is stopped");
      finding.advice = absl::StrCat("continue it with kill -CONT ", worker.stopped_pid,
                                    ", or end the debugger that holds it");
    }
    if (!suspects.empty()) {
      finding.details.push_back(absl::StrCat("suspected by ", absl::StrJoin(suspects, ", ")));
    }
  }
  return findings;
}

std::vector<Finding> find_links(const JobView& job, const Thresholds& thresholds) {
  std::vector<Finding> findings;
  // Pairs that were reported by one end.
  std::set<std::pair<uint64_t, uint64_t>> reported;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    const std::string name = in_quotes(worker.record.name());
    for (const proto::PeerState& peer : worker.state.peers()) {
      const std::string other_name = in_quotes(peer.name());
      if (peer.window_waiting() > 0) {
        Finding& finding = findings.emplace_back();
        finding.kind = Finding::Kind::kFullWindow;
        finding.title = absl::StrCat("full flow window: ", peer.window_waiting(),
                                     peer.window_waiting() == 1 ? " call" : " calls", " of ", name,
                                     peer.window_waiting() == 1 ? " waits" : " wait", " until ", other_name,
                                     " has answered others");
        finding.details = {
            absl::StrCat(peer.window_calls(), " calls of at most ", peer.window_calls_limit(), ", ",
                         bytes_text(static_cast<double>(peer.window_bytes())), " of at most ",
                         bytes_text(static_cast<double>(peer.window_bytes_limit()))),
            absl::StrCat(peer.window_waits(), " calls had to wait so far")};
        finding.culprits = {peer.incarnation()};
      }
      for (const proto::LinkState& link : peer.links()) {
        const absl::Duration since = absl::Microseconds(link.no_room_us());
        if (link.no_room_bytes() == 0 || since > thresholds.no_room) continue;
        Finding& finding = findings.emplace_back();
        finding.kind = Finding::Kind::kNoRoom;
        finding.title =
            absl::StrCat("exhausted arena: the shared memory from ", name, " to ", other_name,
                         " has no room, so ", bytes_text(static_cast<double>(link.no_room_bytes())),
                         " went in small parts, the last of them ", text_of(since), " ago");
        finding.culprits = {peer.incarnation()};
      }
      const WorkerView* other = job.find(peer.incarnation());
      if (!peer.same_host() || other == nullptr || !uses(peer, "tcp") || peer.incarnation() == self) continue;
      uint64_t culprit = 0;
      const std::string why = why_tcp(worker, *other, peer, culprit);
      if (why.empty() || !reported.insert(std::minmax(self, peer.incarnation())).second) continue;
      Finding& finding = findings.emplace_back();
      finding.kind = Finding::Kind::kSlowTransport;
      finding.title =
          absl::StrCat("slow transport: ", name, " and ", other_name, " are on one host, but use tcp: ", why);
      finding.culprits = {culprit};
    }
  }
  return findings;
}

}  // namespace gradwire::inspect
