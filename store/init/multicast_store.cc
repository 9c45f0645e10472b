#include "gradwire/store/init/multicast_store.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/formation/multicast_election.h"
#include "gradwire/store/init/multicast_socket.h"

namespace gradwire::store {
namespace {

// A datagram may be lost.
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);
// Number of members that are counted for the error.
constexpr std::size_t kMostCounted = 65'536;

}  // namespace

absl::StatusOr<Endpoint> find_multicast_store(const Endpoint& group, absl::string_view group_name,
                                              absl::Duration timeout) {
  Clock& clock = Clock::system();
  const absl::Time deadline = clock.now() + timeout;
  GRADWIRE_ASSIGN_OR_RETURN(const std::unique_ptr<MulticastSocket> socket, MulticastSocket::open(group));
  const std::string question = multicast_question(group_name);
  std::set<uint64_t> unsettled;
  absl::Time ask_at = clock.now();
  while (true) {
    const absl::Time now = clock.now();
    if (now >= deadline) break;
    if (now >= ask_at) {
      socket->send(question);
      ask_at = now + kAskAgain;
    }
    const std::optional<MulticastSocket::Datagram> datagram =
        socket->receive(std::min(ask_at, deadline) - now);
    if (!datagram.has_value()) continue;
    const std::optional<AnnouncedMember> member =
        parse_announcement(datagram->bytes, datagram->sender, group_name);
    if (!member.has_value()) continue;
    if (member->settled) return member->endpoint;
    if (unsettled.size() < kMostCounted) unsettled.insert(member->candidate);
  }
  if (unsettled.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no process of the job has answered in the multicast group ", to_string(group), " within ",
        absl::FormatDuration(timeout),
        ": run this program in the same network as the job, while the job runs, or give the address of its "
        "store"));
  }
  return absl::NotFoundError(
      absl::StrCat(unsettled.size(), unsettled.size() == 1 ? " process has" : " processes have",
                   " answered in the multicast group ", to_string(group),
                   ", but the job has no store yet: it waits until all of its processes have arrived"));
}

}  // namespace gradwire::store
