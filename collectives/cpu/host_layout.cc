#include "gradwire/collectives/cpu/host_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::cpu {
namespace {

// A timeout ends the group. After every other failure to share memory the members exchange messages instead,
// which would not help with a member that is absent. A store that fails reports it again in that exchange.
bool is_out_of_time(const absl::Status& status) { return absl::IsDeadlineExceeded(status); }

// The members come together over the store, in steps that all go through.
class HostLayoutFormation {
 public:
  explicit HostLayoutFormation(const HostLayoutOptions& options) : options_(options) {
    layout_.leader_of.resize(static_cast<std::size_t>(options.size));
  }

  absl::StatusOr<HostLayout> run() {
    // 1. Which members say that they have the same host.
    GRADWIRE_RETURN_IF_ERROR(find_hosts());
    // 2. Memory for those of each host, or none where one of them cannot share it.
    GRADWIRE_RETURN_IF_ERROR(share_memory());
    // 3. ShmP2p, where one host has all.
    if (layout_.one_host()) GRADWIRE_RETURN_IF_ERROR(lay_shm_p2p());
    return std::move(layout_);
  }

 private:
  // Every member's text, by member.
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& what, const std::string& mine);
  absl::Status find_hosts();
  absl::Status share_memory();
  absl::Status lay_shm_p2p();

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
    host.memory.store = std::make_shared<store::PrefixStore>(
        absl::StrCat("memory/", layout_.neighbours.front(), "/"), options_.store);
    host.memory.timeout = options_.timeout;
    if (options_.slot_bytes != 0) host.memory.slot_bytes = options_.slot_bytes;
    host.names = layout_.neighbours;
    host.flat_bytes = options_.flat_bytes;
    absl::StatusOr<std::unique_ptr<HostGroup>> joined = HostGroup::join(std::move(host));
    if (joined.ok()) {
      layout_.host = *std::move(joined);
    } else if (is_out_of_time(joined.status())) {
      return joined.status();
    } else {
      failure = joined.status().ToString();
    }
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> failures, exchange("shares", failure));
  // Where it does not work for one member, it works for none of its host: another may have joined before that
  // one gave up, and would wait for it in the memory. There each member is a host of its own.
  std::vector<bool> apart(failures.size());
  for (int member = 0; member < options_.size; ++member) {
    if (!failures[member].empty()) apart[layout_.leader_of[member]] = true;
  }
  if (apart[layout_.leader_of[options_.rank]]) {
    const auto cause = std::find_if(layout_.neighbours.begin(), layout_.neighbours.end(),
                                    [&](int member) { return !failures[member].empty(); });
    log(LogLevel::kWarning, "ranks of this host exchange messages instead of sharing memory: rank ", *cause,
        ": ", failures[*cause]);
    layout_.host.reset();
    layout_.neighbours = {options_.rank};
  }
  for (int member = 0; member < options_.size; ++member) {
    if (apart[layout_.leader_of[member]]) layout_.leader_of[member] = member;
    if (layout_.leader_of[member] == member) layout_.leaders.push_back(member);
  }
  return absl::OkStatus();
}

absl::Status HostLayoutFormation::lay_shm_p2p() {
  absl::StatusOr<std::shared_ptr<ShmP2p>> joined =
      ShmP2p::join({.rank = options_.rank,
                    .size = options_.size,
                    .store = std::make_shared<store::PrefixStore>("shm_p2p/", options_.store),
                    .timeout = options_.timeout,
                    .executor = options_.executor});
  if (is_out_of_time(joined.status())) return joined.status();
  const std::string failure = joined.ok() ? "" : joined.status().ToString();
  if (!failure.empty()) log(LogLevel::kWarning, "ranks of this host have no shared-memory rings: ", failure);
  // All have them, or none.
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
