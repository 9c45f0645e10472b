// Making the world (join_world) and the groups in it (make_groups). Both end in make_together(). Every step
// that can fail on one rank only is followed by a round of agreement, so that the other ranks fail too and do
// not wait for a member that is missing.

#include "gradwire/collectives/group/group_setup.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/name.h"
#include "gradwire/collectives/group/agreement.h"
#include "gradwire/collectives/group/backend_choice.h"
#include "gradwire/collectives/group/non_member_group.h"
#include "gradwire/collectives/group/process_group_impl.h"
#include "gradwire/collectives/group/rank_names.h"
#include "gradwire/store/init/init_method.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives {
namespace {

// Increase it with each change after which ranks of the old and the new version cannot form a group.
constexpr int kProtocolVersion = 1;

absl::Status check_options(const ProcessGroupOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be positive, got ", absl::FormatDuration(options.timeout)));
  }
  if (options.world_size == 0 || options.world_size < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size must be positive, or -1 for the default; got ", options.world_size));
  }
  if (options.rank < -1 || (options.world_size > 0 && options.rank >= options.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is out of range: got rank ", options.rank, ", world size ", options.world_size));
  }
  if (options.store != nullptr && (options.rank < 0 || options.world_size < 0)) {
    return absl::InvalidArgumentError("with a store, rank and world_size are required");
  }
  return absl::OkStatus();
}

// Takes the rank, the world size and the store from the launcher of a backend (mpirun), if the caller has not
// given them.
absl::Status ask_launcher(const BackendEntry& entry, ProcessGroupOptions& options) {
  if (entry.launch_rank_and_size == nullptr) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const auto launched, entry.launch_rank_and_size());
  const auto take = [](int from_launcher, int& option, absl::string_view name) -> absl::Status {
    if (option >= 0 && option != from_launcher) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " mismatch: the options say ", option, ", the launcher says ", from_launcher));
    }
    option = from_launcher;
    return absl::OkStatus();
  };
  GRADWIRE_RETURN_IF_ERROR(take(launched.first, options.rank, "rank"));
  GRADWIRE_RETURN_IF_ERROR(take(launched.second, options.world_size, "world size"));
  if (entry.launch_store != nullptr && options.init_method == "env://" &&
      std::getenv("MASTER_PORT") == nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(options.store, entry.launch_store(options.timeout));
  }
  return absl::OkStatus();
}

// The name of the group's rendezvous. It differs from the name that an rpc agent uses, because a job may have
// a group and an agent at the same address or in the same store.
std::string rendezvous_name(const ProcessGroupOptions& options) {
  return absl::StrCat("process_group", options.group_name.empty() ? "" : ":", options.group_name);
}

// Finds the other ranks. Afterwards `options` has the rank, the world size, and a store for this world alone.
absl::Status find_peers(const BackendEntry& entry, ProcessGroupOptions& options, absl::Time deadline) {
  if (options.store == nullptr) GRADWIRE_RETURN_IF_ERROR(ask_launcher(entry, options));
  // `again`: an earlier group of this name may still have its store. A destroyed group keeps the store as
  // long as there is a pointer to the group.
  const store::RendezvousOptions how{
      .timeout = std::max(deadline - Clock::system().now(), absl::ZeroDuration()),
      .group_name = rendezvous_name(options),
      .again = true,
      .security = options.security};
  absl::StatusOr<store::Rendezvous> found =
      options.store != nullptr
          ? store::rendezvous(options.store, options.rank, options.world_size, how)
          : store::rendezvous(options.init_method, options.rank, options.world_size, how);
  GRADWIRE_RETURN_IF_ERROR(found.status());
  if (found->world_size <= 0) {
    return absl::InvalidArgumentError(
        "a process group needs a fixed world size, but the init method does not give one; pass world_size");
  }
  options.store = std::move(found->store);
  options.store->set_timeout(options.timeout);
  options.rank = found->rank;
  options.world_size = found->world_size;
  return absl::OkStatus();
}

// The options that must be equal on all ranks, as lines "name=value".
std::string describe(const BackendChoice& choice, const ProcessGroupOptions& options) {
  std::vector<std::string> lines = {absl::StrCat("version=", kProtocolVersion),
                                    absl::StrCat("backend=", to_string(choice)),
                                    absl::StrCat("check_consistency=", options.check_consistency)};
  for (const auto& [name, value] : options.options)
    lines.push_back(absl::StrCat("option ", name, "=", value));
  return absl::StrJoin(lines, "\n");
}

absl::Status compare_lines(int rank, absl::string_view first, absl::string_view other) {
  if (first == other) return absl::OkStatus();
  const std::vector<std::string> mine = absl::StrSplit(first, '\n');
  const std::vector<std::string> theirs = absl::StrSplit(other, '\n');
  const auto only_in = [](const std::vector<std::string>& lines, const std::vector<std::string>& others) {
    std::vector<std::string> found;
    for (const std::string& line : lines) {
      if (std::find(others.begin(), others.end(), line) == others.end()) found.push_back(line.substr(0, 200));
    }
    return found.empty() ? std::string("no such option") : absl::StrJoin(found, ", ");
  };
  return absl::InvalidArgumentError(absl::StrCat("the ranks' options differ: rank 0 has ",
                                                 only_in(mine, theirs), ", rank ", rank, " has ",
                                                 only_in(theirs, mine)));
}

// For the progress of a wait, which names ranks of the group: the members' ranks in the world, if they may be
// others.
std::string in_world(const GroupParts& parts) {
  constexpr std::size_t kNamed = 16;
  if (parts.is_world) return "";
  const std::vector<int>& ranks = parts.checks.ranks;
  const auto named = static_cast<std::ptrdiff_t>(std::min(ranks.size(), kNamed));
  return absl::StrCat(" of ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "),
                      ranks.size() > kNamed ? ", ..." : "", " of the world");
}

// Makes this rank's end of a group; its name, rank and ranks are in `parts`. Returns after all ranks have
// made their ends.
absl::StatusOr<std::shared_ptr<ProcessGroup>> make_together(const BackendChoice& choice, GroupParts parts,
                                                            Agreement round,
                                                            std::shared_ptr<void> world_state) {
  parts.checks.backend = choice.kind;
  parts.checks.served = served_devices(choice);
  round.key = "made";
  round.rank = parts.checks.rank;
  round.size = static_cast<int>(parts.checks.ranks.size());
  round.subject = absl::StrCat("process group \"", parts.name, "\"", in_world(parts), ": backends");
  absl::StatusOr<std::unique_ptr<GroupBackend>> backend =
      make_backend(choice, {.store = std::make_shared<store::PrefixStore>("backend", parts.store),
                            .group = parts.name,
                            .rank = round.rank,
                            .size = round.size,
                            .world_ranks = parts.checks.ranks,
                            .timeout = parts.options.timeout,
                            .device_id = parts.options.device_id,
                            .options = parts.options.options,
                            .security = parts.options.security,
                            .world_state = std::move(world_state)});
  const std::string text = backend.ok() ? "" : backend.status().ToString();
  // 1. Every rank publishes whether its backend was made, also a rank that failed. Otherwise the others would
  //    wait until the deadline.
  // 2. A rank that failed returns its own error, which says more than the verdict.
  // 3. The others return Aborted, which names the rank that failed. Their backends are destroyed here.
  const absl::Status all =
      agree(round, text, [](int rank, absl::string_view, absl::string_view other) -> absl::Status {
        if (other.empty()) return absl::OkStatus();
        return absl::AbortedError(absl::StrCat("rank ", rank, " could not make its backend: ", other));
      });
  if (!backend.ok()) {
    return with_context(backend.status(), absl::StrCat("could not make the backend ", to_string(choice)));
  }
  GRADWIRE_RETURN_IF_ERROR(all);
  log(LogLevel::kInfo, "process group \"", parts.name, "\": joined as rank ", round.rank, " of ", round.size,
      ", backend ", to_string(choice));
  parts.backend = *std::move(backend);
  return std::make_shared<ProcessGroupImpl>(std::move(parts));
}

// Compares the options with the other ranks' and makes the world. The rank, world size and store are known.
absl::StatusOr<std::shared_ptr<ProcessGroup>> agree_and_make(ProcessGroupOptions options,
                                                             const BackendChoice& choice,
                                                             absl::Time deadline) {
  const std::shared_ptr<store::Store> store = options.store;
  const std::string name = options.group_name.empty() ? "world" : options.group_name;
  Agreement round{.store = *store,
                  .key = "members",
                  .rank = options.rank,
                  .size = options.world_size,
                  .deadline = deadline,
                  .subject = absl::StrCat("process group \"", name, "\": options")};
  GRADWIRE_RETURN_IF_ERROR(agree(round, describe(choice, options), &compare_lines));

  GroupParts parts;
  parts.name = name;
  parts.checks.rank = options.rank;
  parts.checks.ranks.resize(static_cast<std::size_t>(options.world_size));
  std::iota(parts.checks.ranks.begin(), parts.checks.ranks.end(), 0);
  parts.options = std::move(options);
  parts.store = store;
  return make_together(choice, std::move(parts), round, /*world_state=*/nullptr);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> join(ProcessGroupOptions options) {
  GRADWIRE_RETURN_IF_ERROR(check_options(options));
  GRADWIRE_ASSIGN_OR_RETURN(const BackendChoice choice, choose_backend(options.backend));
  const absl::Time deadline = Clock::system().now() + options.timeout;
  GRADWIRE_RETURN_IF_ERROR(find_peers(*find_backend(choice.kind), options, deadline));
  return agree_and_make(std::move(options), choice, deadline);
}

// The new members' ranks in the world, ascending. Errors: InvalidArgument if `ranks` is not a list of
// distinct members of `parent`.
absl::StatusOr<std::vector<int>> members_of(std::vector<int> ranks, const ProcessGroup& parent) {
  if (ranks.empty()) return absl::InvalidArgumentError("a list of ranks is empty; expected the members");
  std::sort(ranks.begin(), ranks.end());
  if (!std::includes(parent.ranks().begin(), parent.ranks().end(), ranks.begin(), ranks.end())) {
    if (std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "invalid list of ranks: got ", absl::StrJoin(ranks, ", "), ", expected ranks of the group ",
          "in which the new group is made: ", absl::StrJoin(parent.ranks(), ", ")));
    }
    return absl::InvalidArgumentError(absl::StrCat("invalid list of ranks: got ", absl::StrJoin(ranks, ", "),
                                                   ", expected each rank only once"));
  }
  return ranks;
}

// The properties that all groups of one call have in common.
struct NewGroups {
  const GroupRequest& request;
  ProcessGroupOptions options;
  BackendChoice choice;
  // The state that they share with `parent`; nullptr if they have another backend.
  std::shared_ptr<void> world_state;
  absl::Time deadline;
};

// Makes this rank's handle of the group at this place of the lists. Waits for the members if this rank is one
// of them.
absl::StatusOr<std::shared_ptr<ProcessGroup>> make_one(const NewGroups& all, std::size_t place) {
  const ProcessGroup& parent = all.request.parent;
  std::vector<int> ranks = all.request.lists[place];
  const std::string of_several = all.request.lists.size() == 1 ? "" : absl::StrCat(".", place + 1);
  const std::string name = absl::StrCat(parent.name(), "/group", all.request.number + 1, of_several);
  const int world_rank = parent.ranks()[static_cast<std::size_t>(parent.rank())];
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  if (own == ranks.end() || *own != world_rank) {
    return make_non_member_group(name, std::move(ranks), all.choice.kind, all.options.timeout);
  }
  auto store = std::make_shared<store::PrefixStore>(absl::StrCat("group/", all.request.number, of_several),
                                                    all.request.store);
  Agreement round{.store = *store, .deadline = all.deadline, .interrupted = all.request.interrupted};
  GroupParts parts;
  parts.name = name;
  parts.is_world = false;
  parts.checks.rank = static_cast<int>(own - ranks.begin());
  parts.checks.ranks = ranks;
  parts.options = all.options;
  parts.store = store;
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
      make_together(all.choice, std::move(parts), round, all.world_state);
  return group.ok() ? group : explain_ranks(group.status(), ranks);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> join_world(const ProcessGroupOptions& options) {
  // Check the name first: the messages of all other errors contain it.
  if (!options.group_name.empty()) {
    GRADWIRE_RETURN_IF_ERROR(check_name("name of a process group", options.group_name));
  }
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group = join(options);
  if (group.ok()) return group;
  return with_context(
      group.status(),
      absl::StrCat("process group", options.group_name.empty() ? "" : " \"", options.group_name,
                   options.group_name.empty() ? "" : "\"",
                   options.rank < 0 ? std::string() : absl::StrCat(" (rank ", options.rank, ")")));
}

std::shared_ptr<ProcessGroup> ProcessGroup::create(const ProcessGroupOptions& options) {
  return value_or_throw(join_world(options));
}

absl::StatusOr<std::vector<std::shared_ptr<ProcessGroup>>> make_groups(GroupRequest request) {
  const ProcessGroup& parent = request.parent;
  ProcessGroupOptions options = request.parent_options;
  options.timeout = request.options.timeout.value_or(options.timeout);
  GRADWIRE_ASSIGN_OR_RETURN(const BackendChoice parents, choose_backend(options.backend));
  BackendChoice choice = parents;
  if (!request.options.backend.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(choice, choose_backend(request.options.backend));
    // The parent's options are options of the parent's backend.
    if (choice.kind != parents.kind) options.options.clear();
    options.backend = request.options.backend;
  }
  for (std::vector<int>& ranks : request.lists) {
    GRADWIRE_ASSIGN_OR_RETURN(ranks, members_of(std::move(ranks), parent));
  }
  // All members of the parent take part, also those that will not be members of a new group: this is a
  // collective of the parent, and each rank must count the new groups.
  const auto store =
      std::make_shared<store::PrefixStore>(absl::StrCat("group/", request.number), request.store);
  const Agreement round{.store = *store,
                        .key = "asked",
                        .rank = parent.rank(),
                        .size = parent.size(),
                        .deadline = Clock::system().now() + parent.timeout(),
                        .interrupted = request.interrupted,
                        .subject = absl::StrCat("process group \"", parent.name(), "\": new groups")};
  const std::string lists =
      absl::StrJoin(request.lists, " and of ranks ", [](std::string* out, const std::vector<int>& ranks) {
        absl::StrAppend(out, absl::StrJoin(ranks, ", "));
      });
  const std::string asked = absl::StrCat("ranks ", lists, ", timeout ", absl::FormatDuration(options.timeout),
                                         ", backend ", to_string(choice));
  GRADWIRE_RETURN_IF_ERROR(
      agree(round, asked, [](int rank, absl::string_view first, absl::string_view other) -> absl::Status {
        if (first == other) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " asks for ", other, "; rank 0 asks for ", first));
      }));
  // The state of the parent, for example its mesh, belongs to the parent's backend. Another backend cannot
  // use it.
  const bool same = to_string(choice) == to_string(parents);
  const NewGroups all{.request = request,
                      .options = std::move(options),
                      .choice = choice,
                      .world_state = same ? request.world_state : nullptr,
                      .deadline = round.deadline};
  // After a failure this rank goes on: it may be a member of later groups too, and their other members, which
  // the failure does not concern, wait for it.
  std::vector<std::shared_ptr<ProcessGroup>> made;
  absl::Status first_failure;
  for (std::size_t place = 0; place < request.lists.size(); ++place) {
    absl::StatusOr<std::shared_ptr<ProcessGroup>> group = make_one(all, place);
    if (group.ok()) {
      made.push_back(*std::move(group));
    } else {
      first_failure.Update(group.status());
    }
  }
  GRADWIRE_RETURN_IF_ERROR(first_failure);
  return made;
}

}  // namespace gradwire::collectives
