#include "gradwire/store/formation/multicast_election.h"

#include <utility>

namespace gradwire::store {
namespace {

constexpr uint64_t kMagic = 0x6772616477697265;

}  // namespace

MulticastElection::MulticastElection(std::string group_name, int world_size, uint64_t candidate, int port,
                                     absl::Time now)
    : group_name_(std::move(group_name)),
      world_size_(world_size),
      candidate_(candidate),
      port_(port),
      start_(now) {}

std::string MulticastElection::announcement() const {
  proto::Announcement announcement;
  announcement.set_magic(kMagic);
  announcement.set_group_name(group_name_);
  announcement.set_world_size(world_size_);
  announcement.set_candidate(candidate_);
  announcement.set_port(port_);
  announcement.set_settled(settled_);
  return announcement.SerializeAsString();
}

bool MulticastElection::observe(absl::string_view datagram, const std::string& sender, absl::Time now) {
  proto::Announcement heard;
  if (!heard.ParseFromArray(datagram.data(), static_cast<int>(datagram.size()))) return false;
  if (heard.magic() != kMagic || heard.group_name() != group_name_) return false;
  if (heard.candidate() == 0 || heard.candidate() == candidate_) return false;
  if (heard.port() < 1 || heard.port() > 65535 || heard.world_size() < 0) return false;
  if (heard.world_size() != world_size_) {
    contradiction_ = {sender, heard.world_size()};
    return true;
  }
  if (auto found = others_.find(heard.candidate()); found != others_.end()) {
    // The first address stays: it may be heard on several interfaces, and each works.
    found->second.heard = now;
    found->second.settled = heard.settled();
  } else if (others_.size() < kMaxCandidates) {
    others_.emplace(heard.candidate(), Candidate{{sender, heard.port()}, heard.settled(), now});
  }
  return true;
}

std::optional<MulticastElection::Decision> MulticastElection::decide(absl::Time now) {
  for (auto it = others_.begin(); it != others_.end();) {
    it = now - it->second.heard > kForgetAfter ? others_.erase(it) : std::next(it);
  }
  for (const auto& [candidate, other] : others_) {
    if (other.settled) return Decision{.self = false, .endpoint = other.endpoint, .candidate = candidate};
  }
  const bool lowest = others_.empty() || candidate_ < others_.begin()->first;
  if (world_size_ > 0) {
    if (known() < world_size_) return std::nullopt;
    if (lowest) return Decision{.self = true, .endpoint = {}, .candidate = candidate_};
    return Decision{
        .self = false, .endpoint = others_.begin()->second.endpoint, .candidate = others_.begin()->first};
  }
  if (now - start_ < kListenTime || !lowest) return std::nullopt;
  return Decision{.self = true, .endpoint = {}, .candidate = candidate_};
}

}  // namespace gradwire::store
