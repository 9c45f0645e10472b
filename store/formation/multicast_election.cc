#include "gradwire/store/formation/multicast_election.h"

#include <utility>

namespace gradwire::store {
namespace {

// The characters "gradwire". Any program may send datagrams to the group.
constexpr uint64_t kMagic = 0x6772616477697265;

// Datagrams are not authenticated. Malformed ones and those of other groups are ignored.
bool parse(absl::string_view datagram, absl::string_view group_name, proto::Announcement& received) {
  return received.ParseFromArray(datagram.data(), static_cast<int>(datagram.size())) &&
         received.magic() == kMagic && received.group_name() == group_name;
}

bool is_question(const proto::Announcement& received) {
  return received.candidate() == 0 && received.port() == 0 && received.world_size() == 0 &&
         !received.settled();
}

bool is_candidate(const proto::Announcement& received) {
  return received.candidate() != 0 && received.port() >= 1 && received.port() <= 65535 &&
         received.world_size() >= 0;
}

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

// The number of candidates is limited, since each takes memory.
bool MulticastElection::observe(absl::string_view datagram, const std::string& sender, absl::Time now) {
  proto::Announcement received;
  if (!parse(datagram, group_name_, received)) return false;
  if (is_question(received)) return true;
  if (!is_candidate(received) || received.candidate() == candidate_) return false;
  if (received.world_size() != world_size_) {
    contradiction_ = {sender, received.world_size()};
    return true;
  }
  if (auto found = others_.find(received.candidate()); found != others_.end()) {
    // Keep the first address: a candidate may be received on several interfaces, and each address works.
    found->second.last_seen = now;
    found->second.settled = received.settled();
  } else if (others_.size() < kMaxCandidates) {
    others_.emplace(received.candidate(), Candidate{{sender, received.port()}, received.settled(), now});
  }
  return true;
}

std::optional<MulticastElection::Decision> MulticastElection::decide(absl::Time now) {
  for (auto it = others_.begin(); it != others_.end();) {
    it = now - it->second.last_seen > kForgetAfter ? others_.erase(it) : std::next(it);
  }
  for (const auto& [candidate, other] : others_) {
    if (other.settled) return Decision{.self = false, .endpoint = other.endpoint, .candidate = candidate};
  }
  // The candidates are random numbers, so at most one process is the lowest. In an open group two processes
  // that do not see each other's announcements may both settle. A process that arrives later joins a
  // settled one.
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

std::string multicast_question(absl::string_view group_name) {
  proto::Announcement question;
  question.set_magic(kMagic);
  question.set_group_name(std::string(group_name));
  return question.SerializeAsString();
}

std::optional<AnnouncedMember> parse_announcement(absl::string_view datagram, const std::string& sender,
                                                  absl::string_view group_name) {
  proto::Announcement received;
  if (!parse(datagram, group_name, received) || !is_candidate(received)) return std::nullopt;
  return AnnouncedMember{received.candidate(), {sender, received.port()}, received.settled()};
}

}  // namespace gradwire::store
