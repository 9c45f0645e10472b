#include "gradwire/collectives/cpu/host/host_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::cpu {
namespace {

// A timeout fails the formation. After every other failure to share memory the members exchange messages
// instead; that would not help against an absent member. If the store fails, the exchange that follows
// reports it again.
bool is_timeout(const absl::Status& status) { return absl::IsDeadlineExceeded(status); }

// The members form the layout through the store, in steps that every member executes.
class HostLayoutFormation {
 public:
  explicit HostLayoutFormation(const HostLayoutOptions& options) : options_(options) {
    layout_.leader_of.resize(static_cast<std::size_t>(options.size));
  }

  absl::StatusOr<HostLayout> run() {
    // 1. Find the members that are on the same host.
    GRADWIRE_RETURN_IF_ERROR(find_hosts());
    // 2. Share memory on each host, unless one of its members cannot.
    GRADWIRE_RETURN_IF_ERROR(share_memory());
    // 3. Join ShmP2p if all members are on one host.
    if (layout_.one_host()) GRADWIRE_RETURN_IF_ERROR(join_shm_p2p());
    return std::move(layout_);
  }

 private:
  // Publishes `mine`, and returns the texts of all members.
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& what, const std::string& mine);
  absl::Status find_hosts();
  absl::Status share_memory();
  absl::Status join_shm_p2p();

  const HostLayoutOptions& options_;
  HostLayout layout_;
};

absl::StatusOr<std::vector<std::string>> HostLayoutFormation::exchange(const std::string& what,
                                                                       const std::string& mine) {
  GRADWIRE_RETURN_IF_ERROR(options_.store->try_set(absl::StrCat(what, "/", options_.rank), mine));
  std::vector<std::string> keys;
  for (int member = 0; member < options_.size; ++member) keys.push_back(absl::StrCat(what, "/", member));
  GRADWIRE_RETURN_IF_ERROR(options_.store->try_wait(keys, options_.timeout));
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string value, options_.store->try_get(key, options_.timeout));
    values.push_back(std::move(value));
  }
  return values;
}

absl::Status HostLayoutFormation::find_hosts() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, exchange("host", options_.host));
  for (int member = 0; member < options_.size; ++member) {
    layout_.leader_of[member] = member;
    if (hosts[member].empty()) continue;
    layout_.leader_of[member] =
        static_cast<int>(std::find(hosts.begin(), hosts.begin() + member, hosts[member]) - hosts.begin());
  }
  return absl::OkStatus();
}

absl::Status HostLayoutFormation::share_memory() {
  for (int member = 0; member < options_.size; ++member) {
    if (layout_.leader_of[member] == layout_.leader_of[options_.rank]) layout_.neighbours.push_back(member);
  }
  std::string failure;
  if (layout_.neighbours.size() > 1) {
    HostGroup::Options host;
    host.memory.index =
        static_cast<int>(std::find(layout_.neighbours.begin(), layout_.neighbours.end(), options_.rank) -
                         layout_.neighbours.begin());
    host.memory.size = static_cast<int>(layout_.neighbours.size());
    // The prefix has the leader of the host, so that the members of different hosts do not find each other's
    // memory.
    host.memory.store = std::make_shared<store::PrefixStore>(
        absl::StrCat("memory/", layout_.neighbours.front(), "/"), options_.store);
    host.memory.timeout = options_.timeout;
    if (options_.slot_bytes != 0) host.memory.slot_bytes = options_.slot_bytes;
    host.names = layout_.neighbours;
    host.flat_bytes = options_.flat_bytes;
    absl::StatusOr<std::unique_ptr<HostGroup>> joined = HostGroup::join(std::move(host));
    if (joined.ok()) {
      layout_.host = *std::move(joined);
    } else if (is_timeout(joined.status())) {
      return joined.status();
    } else {
      failure = joined.status().ToString();
    }
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> failures, exchange("shares", failure));
  // If one member of a host cannot share memory, no member of that host may: another member may have joined
  // before that one failed, and would wait for it in the memory. On such a host each member counts as a host
  // of its own.
  std::vector<bool> no_sharing(failures.size());
  for (int member = 0; member < options_.size; ++member) {
    if (!failures[member].empty()) no_sharing[layout_.leader_of[member]] = true;
  }
  if (no_sharing[layout_.leader_of[options_.rank]]) {
    const auto cause = std::find_if(layout_.neighbours.begin(), layout_.neighbours.end(),
                                    [&](int member) { return !failures[member].empty(); });
    log(LogLevel::kWarning, "ranks of this host exchange messages instead of sharing memory: rank ", *cause,
        ": ", failures[*cause]);
    layout_.host.reset();
    layout_.neighbours = {options_.rank};
  }
  for (int member = 0; member < options_.size; ++member) {
    if (no_sharing[layout_.leader_of[member]]) layout_.leader_of[member] = member;
    if (layout_.leader_of[member] == member) layout_.leaders.push_back(member);
  }
  return absl::OkStatus();
}

absl::Status HostLayoutFormation::join_shm_p2p() {
  absl::StatusOr<std::shared_ptr<ShmP2p>> joined =
      ShmP2p::join({.rank = options_.rank,
                    .size = options_.size,
                    .store = std::make_shared<store::PrefixStore>("shm_p2p/", options_.store),
                    .timeout = options_.timeout,
                    .executor = options_.executor});
  if (is_timeout(joined.status())) return joined.status();
  const std::string failure = joined.ok() ? "" : joined.status().ToString();
  if (!failure.empty())
    log(LogLevel::kWarning,
        "ranks of this host send and receive over connections instead of shared memory: ", failure);
  // Either all members use ShmP2p or none.
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> failures, exchange("shm_p2p", failure));
  if (std::all_of(failures.begin(), failures.end(), [](const std::string& each) { return each.empty(); }))
    layout_.shm_p2p = *std::move(joined);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostLayout> lay_out_hosts(const HostLayoutOptions& options) {
  return HostLayoutFormation(options).run();
}

}  // namespace gradwire::collectives::cpu
