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
#include "gradwire/base/log.h"
#include "gradwire/base/name.h"
#include "gradwire/collectives/group/agreement.h"
#include "gradwire/collectives/group/backend_choice.h"
#include "gradwire/collectives/group/non_member_group.h"
#include "gradwire/collectives/group/process_group_impl.h"
#include "gradwire/collectives/group/rank_names.h"
#include "gradwire/store/init_method.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives {
namespace {

// Raised when the ranks of a group no longer understand those of the last.
constexpr int kProtocolVersion = 1;

absl::Status check_options(const ProcessGroupOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the timeout is ", absl::FormatDuration(options.timeout), "; it must be positive"));
  }
  if (options.world_size == 0 || options.world_size < -1) {
    return absl::InvalidArgumentError(absl::StrCat("the world size is ", options.world_size));
  }
  if (options.rank < -1 || (options.world_size > 0 && options.rank >= options.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not one of a world size of ", options.world_size));
  }
  if (options.store != nullptr && (options.rank < 0 || options.world_size < 0)) {
    return absl::InvalidArgumentError("with a store, rank and world_size are required");
  }
  return absl::OkStatus();
}

// Takes from the launcher of a backend (mpirun) what the caller does not say.
absl::Status ask_launcher(const BackendEntry& entry, ProcessGroupOptions& options) {
  if (entry.launch_place == nullptr) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const auto place, entry.launch_place());
  const auto take = [](int own, int& given, absl::string_view name) -> absl::Status {
    if (given >= 0 && given != own) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", name, " is given as ", given, ", and the launcher says ", own));
    }
    given = own;
    return absl::OkStatus();
  };
  GRADWIRE_RETURN_IF_ERROR(take(place.first, options.rank, "rank"));
  GRADWIRE_RETURN_IF_ERROR(take(place.second, options.world_size, "world size"));
  if (entry.launch_store != nullptr && options.init_method == "env://" &&
      std::getenv("MASTER_PORT") == nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(options.store, entry.launch_store(options.timeout));
  }
  return absl::OkStatus();
}

// A name that the rendezvous of an rpc agent at the same address, or in the same store, does not have: a job
// may have both.
std::string rendezvous_name(const ProcessGroupOptions& options) {
  return absl::StrCat("process_group", options.group_name.empty() ? "" : ":", options.group_name);
}

// Finds the others; afterwards `options` has the rank and world size, and a store that is this world's alone.
absl::Status find_place(const BackendEntry& entry, ProcessGroupOptions& options, absl::Time deadline) {
  if (options.store == nullptr) GRADWIRE_RETURN_IF_ERROR(ask_launcher(entry, options));
  // A group that has been destroyed keeps its store for as long as somebody has a pointer to it.
  const store::RendezvousOptions how{
      .timeout = std::max(deadline - Clock::system().now(), absl::ZeroDuration()),
      .group_name = rendezvous_name(options),
      .again = true};
  absl::StatusOr<store::Rendezvous> found =
      options.store != nullptr
          ? store::rendezvous(options.store, options.rank, options.world_size, how)
          : store::rendezvous(options.init_method, options.rank, options.world_size, how);
  GRADWIRE_RETURN_IF_ERROR(found.status());
  if (found->world_size <= 0) return absl::InvalidArgumentError("a process group has a fixed world size");
  options.store = std::move(found->store);
  options.store->set_timeout(options.timeout);
  options.rank = found->rank;
  options.world_size = found->world_size;
  return absl::OkStatus();
}

// "name=value" lines: what must be alike on all ranks.
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
    return found.empty() ? std::string("nothing of it") : absl::StrJoin(found, ", ");
  };
  return absl::InvalidArgumentError(absl::StrCat("the ranks' options differ: rank 0 says ",
                                                 only_in(mine, theirs), ", rank ", rank, " says ",
                                                 only_in(theirs, mine)));
}

// This rank's end of a group whose name, rank and ranks are in `parts`, when all ranks have made theirs.
absl::StatusOr<std::shared_ptr<ProcessGroup>> make_together(const BackendChoice& choice, GroupParts parts,
                                                            Agreement round,
                                                            std::shared_ptr<void> world_state) {
  parts.stage_to_host = describe_devices(choice, parts.checks);
  round.key = "made";
  round.rank = parts.checks.rank;
  round.size = static_cast<int>(parts.checks.ranks.size());
  absl::StatusOr<std::unique_ptr<GroupBackend>> backend =
      make_backend(choice, {.store = std::make_shared<store::PrefixStore>("backend", parts.store),
                            .group = parts.name,
                            .rank = round.rank,
                            .size = round.size,
                            .world_ranks = parts.checks.ranks,
                            .timeout = parts.options.timeout,
                            .device_id = parts.options.device_id,
                            .options = parts.options.options,
                            .world_state = std::move(world_state)});
  const std::string text = backend.ok() ? "" : backend.status().ToString();
  const absl::Status all =
      agree(round, text, [](int rank, absl::string_view, absl::string_view other) -> absl::Status {
        if (other.empty()) return absl::OkStatus();
        return absl::AbortedError(absl::StrCat("rank ", rank, " could not make its backend: ", other));
      });
  if (!backend.ok()) return with_context(backend.status(), absl::StrCat("the backend ", to_string(choice)));
  GRADWIRE_RETURN_IF_ERROR(all);
  log(LogLevel::kInfo, "process group \"", parts.name, "\": joined as rank ", round.rank, " of ", round.size,
      ", backend ", to_string(choice));
  parts.backend = *std::move(backend);
  return std::make_shared<ProcessGroupImpl>(std::move(parts));
}

// The rest of join(), when this rank has its place.
absl::StatusOr<std::shared_ptr<ProcessGroup>> meet(ProcessGroupOptions options, const BackendChoice& choice,
                                                   absl::Time deadline) {
  const std::shared_ptr<store::Store> store = options.store;
  Agreement round{.store = *store,
                  .key = "members",
                  .rank = options.rank,
                  .size = options.world_size,
                  .deadline = deadline};
  GRADWIRE_RETURN_IF_ERROR(agree(round, describe(choice, options), &compare_lines));

  GroupParts parts;
  parts.name = options.group_name.empty() ? "world" : options.group_name;
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
  GRADWIRE_RETURN_IF_ERROR(find_place(*find_backend(choice.kind), options, deadline));
  return meet(std::move(options), choice, deadline);
}

// The members of a group, ascending. InvalidArgument for what cannot be a list of them.
absl::StatusOr<std::vector<int>> members_of(std::vector<int> ranks, int world_size) {
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::sort(ranks.begin(), ranks.end());
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks ", absl::StrJoin(ranks, ", "), " are not all of a world of ", world_size));
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks ", absl::StrJoin(ranks, ", "), " name one twice"));
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> join_world(const ProcessGroupOptions& options) {
  // Every other error has the name in it.
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

absl::StatusOr<std::shared_ptr<ProcessGroup>> make_group(GroupRequest request) {
  const ProcessGroup& world = request.world;
  ProcessGroupOptions options = request.world_options;
  options.timeout = request.options.timeout.value_or(options.timeout);
  GRADWIRE_ASSIGN_OR_RETURN(const BackendChoice worlds, choose_backend(options.backend));
  BackendChoice choice = worlds;
  if (!request.options.backend.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(choice, choose_backend(request.options.backend));
    // They are the world's backend's.
    if (choice.kind != worlds.kind) options.options.clear();
    options.backend = request.options.backend;
  }
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<int> ranks, members_of(std::move(request.ranks), world.size()));
  auto store = std::make_shared<store::PrefixStore>(absl::StrCat("group/", request.number), request.store);
  Agreement round{.store = *store,
                  .key = "asked",
                  .rank = world.rank(),
                  .size = world.size(),
                  .deadline = Clock::system().now() + world.timeout(),
                  .interrupted = request.interrupted};
  const std::string asked =
      absl::StrCat("ranks ", absl::StrJoin(ranks, ", "), ", timeout ", absl::FormatDuration(options.timeout),
                   ", backend ", to_string(choice));
  GRADWIRE_RETURN_IF_ERROR(
      agree(round, asked, [](int rank, absl::string_view first, absl::string_view other) -> absl::Status {
        if (first == other) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " asks for ", other, "; rank 0 asks for ", first));
      }));

  const std::string name = absl::StrCat(world.name(), "/group", request.number + 1);
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), world.rank());
  if (own == ranks.end() || *own != world.rank()) {
    return make_non_member_group(name, std::move(ranks), choice.kind, options.timeout);
  }
  GroupParts parts;
  parts.name = name;
  parts.is_world = false;
  parts.checks.rank = static_cast<int>(own - ranks.begin());
  parts.checks.ranks = ranks;
  parts.options = std::move(options);
  parts.store = store;
  const bool same = choice.kind == worlds.kind && choice.with_nccl == worlds.with_nccl;
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
      make_together(choice, std::move(parts), round, same ? request.world_state : nullptr);
  return group.ok() ? group : explain_ranks(group.status(), ranks);
}

}  // namespace gradwire::collectives
