// Reads the input as datagrams that a member of a multicast group hears
// (store/formation/multicast_election.h): for each a byte with the tenths of a second since the last, a byte
// with its length, and its bytes. The first byte is the world's size.

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

struct Heard {
  int port;
  std::string host;
  bool settled;
  absl::Time at;
};

// Who hosts by the rules in the class comment: 0 nobody yet, else the candidate.
uint64_t expected_host(std::map<uint64_t, Heard>& others, int world_size, absl::Time start, absl::Time now) {
  std::erase_if(others, [now](const auto& each) { return now - each.second.at > absl::Seconds(3); });
  uint64_t lowest = kSelf;
  for (const auto& [candidate, heard] : others) {
    if (heard.settled) return candidate;
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
  std::map<uint64_t, Heard> others;
  while (!input.empty()) {
    now += absl::Milliseconds(100) * static_cast<int64_t>(input.number(1) % 16);
    const std::string datagram = input.text(input.number(1));
    const std::string sender = std::to_string(others.size());
    gradwire::store::proto::Announcement said;
    const bool counts = said.ParseFromString(datagram) && said.magic() == 0x6772616477697265 &&
                        said.group_name() == "group" && said.candidate() != 0 && said.candidate() != kSelf &&
                        said.port() >= 1 && said.port() <= 65'535 && said.world_size() >= 0;
    require(election.observe(datagram, sender, now) == counts, "a datagram is taken for another than it is");
    if (counts && said.world_size() != world_size) {
      require(
          election.contradiction().has_value() && election.contradiction()->world_size == said.world_size(),
          "a contradiction was not noticed");
    } else if (counts) {
      Heard& heard =
          others.try_emplace(said.candidate(), Heard{said.port(), sender, false, now}).first->second;
      heard.settled = said.settled();
      heard.at = now;
    }
    const uint64_t host = expected_host(others, world_size, start, now);
    const auto decision = election.decide(now);
    require(decision.has_value() == (host != 0), "a decision too early, or too late");
    require(election.known() == static_cast<int>(others.size()) + 1, "other candidates are known");
    if (host == 0) continue;
    require(decision->candidate == host && decision->self == (host == kSelf), "another candidate hosts");
    if (host == kSelf) continue;
    require(
        decision->endpoint.host == others.at(host).host && decision->endpoint.port == others.at(host).port,
        "another endpoint");
  }
  return 0;
}
