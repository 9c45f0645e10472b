// Reads the input as datagrams that a member of a multicast group receives
// (store/formation/multicast_election.h). For each datagram: a byte with the tenths of a second since the
// last one, a byte with its length, and its bytes. The first byte of the input is the world's size.

#include <map>
#include <string>

#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/formation/multicast_election.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::store::MulticastElection;

constexpr uint64_t kSelf = 50;

struct Candidate {
  int port;
  std::string host;
  bool settled;
  absl::Time at;
};

// Returns the candidate that hosts by the rules in the class comment, or 0 if none is decided yet.
uint64_t expected_host(std::map<uint64_t, Candidate>& others, int world_size, absl::Time start,
                       absl::Time now) {
  std::erase_if(others, [now](const auto& each) { return now - each.second.at > absl::Seconds(3); });
  uint64_t lowest = kSelf;
  for (const auto& [candidate, known] : others) {
    if (known.settled) return candidate;
    lowest = std::min(lowest, candidate);
  }
  if (world_size > 0) return static_cast<int>(others.size()) + 1 >= world_size ? lowest : 0;
  return now - start >= absl::Seconds(1) && lowest == kSelf ? kSelf : 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gradwire::fuzzing::Input input(data, size);
  const int world_size = static_cast<int>(input.number(1) % 5);
  const absl::Time start = absl::UnixEpoch();
  absl::Time now = start;
  MulticastElection election("group", world_size, kSelf, 1000, start);
  std::map<uint64_t, Candidate> others;
  while (!input.empty()) {
    now += absl::Milliseconds(100) * static_cast<int64_t>(input.number(1) % 16);
    const std::string datagram = input.text(input.number(1));
    const std::string sender = std::to_string(others.size());
    gradwire::store::proto::Announcement announcement;
    const bool is_ours = announcement.ParseFromString(datagram) &&
                         announcement.magic() == 0x6772616477697265 && announcement.group_name() == "group";
    const bool announces = is_ours && announcement.candidate() != 0 && announcement.port() >= 1 &&
                           announcement.port() <= 65'535 && announcement.world_size() >= 0;
    const bool counts = announces && announcement.candidate() != kSelf;
    const bool asks = is_ours && announcement.candidate() == 0 && announcement.port() == 0 &&
                      announcement.world_size() == 0 && !announcement.settled();
    require(election.observe(datagram, sender, now) == (counts || asks),
            "a datagram is accepted or refused wrongly");
    const auto member = gradwire::store::parse_announcement(datagram, sender, "group");
    require(member.has_value() == announces, "an observer accepts or refuses a datagram wrongly");
    require(!announces ||
                (member->candidate == announcement.candidate() && member->settled == announcement.settled() &&
                 member->endpoint.host == sender && member->endpoint.port == announcement.port()),
            "an observer reads something else than what was announced");
    if (counts && announcement.world_size() != world_size) {
      require(election.contradiction().has_value() &&
                  election.contradiction()->world_size == announcement.world_size(),
              "a contradiction was not noticed");
    } else if (counts) {
      Candidate& known =
          others.try_emplace(announcement.candidate(), Candidate{announcement.port(), sender, false, now})
              .first->second;
      known.settled = announcement.settled();
      known.at = now;
    }
    const uint64_t host = expected_host(others, world_size, start, now);
    const auto decision = election.decide(now);
    require(decision.has_value() == (host != 0), "the decision is too early or too late");
    require(election.known() == static_cast<int>(others.size()) + 1,
            "the number of known candidates is wrong");
    if (host == 0) continue;
    require(decision->candidate == host && decision->self == (host == kSelf), "the wrong candidate hosts");
    if (host == kSelf) continue;
    require(
        decision->endpoint.host == others.at(host).host && decision->endpoint.port == others.at(host).port,
        "the wrong endpoint");
  }
  return 0;
}
