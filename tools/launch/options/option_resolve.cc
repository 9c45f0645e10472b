#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/options/option_table.h"

namespace gradwire::tools {
namespace {

// torchrun's, and etcd's own.
constexpr int kStorePort = 29400;
constexpr int kEtcdPort = 2379;

absl::Status resolve_roles(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  int counted = 0, total = 0;
  for (const RoleCount& role : draft.roles) {
    counted += role.count > 0 ? 1 : 0;
    total += role.count;
  }
  if (counted == 0) {
    // The last label counts, as with any option that is given twice.
    options.nproc_per_node = draft.workers.value_or(1);
    options.roles = {{draft.roles.empty() ? "default" : draft.roles.back().name, options.nproc_per_node}};
    return absl::OkStatus();
  }
  for (auto role = draft.roles.begin(); role != draft.roles.end(); ++role) {
    if (role->count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("option --role: \"", role->name, "\" has no count, and others do"));
    }
    if (std::any_of(draft.roles.begin(), role, [&](const RoleCount& r) { return r.name == role->name; })) {
      return absl::InvalidArgumentError(absl::StrCat("option --role: \"", role->name, "\" is given twice"));
    }
  }
  if (draft.workers && *draft.workers != total) {
    return absl::InvalidArgumentError(absl::StrCat("the counts of --role make ", total,
                                                   " workers and --nproc_per_node says ", *draft.workers));
  }
  if (total > kMaxWorkersPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --role: ", total, " workers are more than ", kMaxWorkersPerNode));
  }
  options.nproc_per_node = total;
  options.roles = draft.roles;
  return absl::OkStatus();
}

// Fills in what the scheduler knows, as far as it speaks of the nodes that the command line means.
absl::Status apply_cluster(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (options.standalone) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const std::optional<ClusterPlace> cluster,
                            read_cluster(draft.host_info->variable));
  if (!cluster) return absl::OkStatus();
  if (cluster->launchers_per_node > 1) {
    if (draft.nodes_given) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(cluster->system, " has started ", cluster->launchers_per_node,
                     " launchers on a node: start one on each, and --nproc_per_node workers under it (or say "
                     "--standalone, or --nnodes, to have a job of each)"));
  }
  if (!draft.nodes_given && cluster->nnodes) options.min_nodes = options.max_nodes = *cluster->nnodes;
  if (!draft.nodes_given && !cluster->note.empty()) options.notes.push_back(cluster->note);
  if (options.run_id.empty() && cluster->run_id) {
    GRADWIRE_RETURN_IF_ERROR(
        with_context(parse_run_id(*cluster->run_id, options.run_id), "the scheduler's job id"));
  }
  // It does not know the nodes of a job of another size, and one node needs no address of a network. With
  // ranks chosen by hand node 0 may be any.
  const bool same_nodes = cluster->nnodes.value_or(options.max_nodes) == options.max_nodes;
  const bool same_rank = !options.node_rank || options.node_rank == cluster->node_rank;
  if (!same_nodes || !same_rank || options.max_nodes == 1) return absl::OkStatus();
  const bool address_given = draft.master_addr || !draft.endpoints.empty();
  if (!address_given && cluster->master_addr && draft.backend != RendezvousBackend::kEtcd) {
    draft.master_addr = cluster->master_addr;
  }
  if (!options.elastic() && draft.endpoints.empty() &&
      draft.backend.value_or(RendezvousBackend::kStatic) == RendezvousBackend::kStatic) {
    options.node_rank = cluster->node_rank;
    if (options.node_rank.value_or(0) >= options.max_nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat(cluster->system, " says that this is node ", *options.node_rank,
                       ", and the nodes of --nnodes=", options.max_nodes, " are 0..", options.max_nodes - 1));
    }
    if (!draft.master_addr) {
      return absl::InvalidArgumentError(absl::StrCat(cluster->system, " does not say where node 0 of the ",
                                                     options.max_nodes,
                                                     " nodes is: give --master_addr or --rdzv_endpoint"));
    }
  }
  return absl::OkStatus();
}

RendezvousBackend default_backend(const OptionDraft& draft) {
  return draft.endpoints.empty() && !draft.options.elastic() ? RendezvousBackend::kStatic
                                                             : RendezvousBackend::kStore;
}

// Where the store is: the endpoint, else --master_addr and --master_port.
absl::Status resolve_store(OptionDraft& draft, int default_port) {
  LaunchOptions& options = draft.options;
  if (draft.endpoints.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("option --rdzv_endpoint: ", draft.endpoints.size(),
                                                   " endpoints are for etcd (--rdzv_backend=etcd); one store "
                                                   "has one"));
  }
  if (!draft.endpoints.empty()) {
    options.master_addr = draft.endpoints.front().host;
    const int port = draft.endpoints.front().port;
    options.master_port = port == kNoPort ? default_port : port;
    return absl::OkStatus();
  }
  options.master_addr = draft.master_addr.value_or("127.0.0.1");
  options.master_port = draft.master_port.value_or(default_port);
  return absl::OkStatus();
}

absl::Status resolve_backend(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (options.standalone) {
    if (options.max_nodes != 1) {
      return absl::InvalidArgumentError("--standalone means one node; leave it out with --nnodes above 1");
    }
    options.backend = RendezvousBackend::kStore;
    options.master_addr = "localhost";
    options.master_port = draft.master_port.value_or(0);
    options.node_rank = 0;
    return absl::OkStatus();
  }
  options.backend = draft.backend.value_or(default_backend(draft));
  const bool several = options.max_nodes > 1;
  const bool located = !draft.endpoints.empty() || draft.master_addr || draft.master_port;
  switch (options.backend) {
    case RendezvousBackend::kStatic:
      if (options.elastic()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--nnodes=", options.min_nodes, ":", options.max_nodes,
                         " needs a backend whose nodes may come and go: store or etcd, not static"));
      }
      if (!options.node_rank) options.node_rank = 0;
      return resolve_store(draft, 29500);
    case RendezvousBackend::kStore:
      if (several && !located) {
        return absl::InvalidArgumentError(absl::StrCat(
            "up to ", options.max_nodes,
            " nodes have to know where to meet: give --rdzv_endpoint=HOST:PORT, the same on each"));
      }
      return resolve_store(draft, located ? kStorePort : 0);
    case RendezvousBackend::kEtcd:
      if (draft.endpoints.empty()) {
        return absl::InvalidArgumentError("etcd's address is missing: give --rdzv_endpoint=HOST:PORT");
      }
      // An id that all jobs share would not last longer than the first of them.
      if (several && options.run_id.empty()) {
        return absl::InvalidArgumentError(
            "etcd remembers jobs that are over, so each needs an id of its own: give --rdzv_id=ID, the same "
            "on each node");
      }
      for (store::Endpoint endpoint : draft.endpoints) {
        if (endpoint.port == kNoPort) endpoint.port = kEtcdPort;
        options.endpoints.push_back(store::to_string(endpoint));
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status check_nodes(const LaunchOptions& options) {
  if (options.node_rank && *options.node_rank >= options.max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("option --node_rank: ", *options.node_rank,
                                                   " is not in 0..", options.max_nodes - 1,
                                                   " (--nnodes=", options.max_nodes, ")"));
  }
  if (options.backend != RendezvousBackend::kEtcd) {
    if (options.max_nodes > 1 && options.master_port == 0) {
      return absl::InvalidArgumentError(
          "0 (a free port) cannot be known to other nodes: give a port by --master_port or --rdzv_endpoint");
    }
    const store::EtcdSecurity& etcd = options.conf.etcd;
    if (!etcd.authority_file.empty() || !etcd.certificate_file.empty() || !etcd.user.empty()) {
      return absl::InvalidArgumentError(
          "option --rdzv_conf: cacert, cert, key, user and password are for --rdzv_backend=etcd");
    }
  }
  return absl::OkStatus();
}

absl::Status check_program(const LaunchOptions& options) {
  if (options.program.empty()) return absl::InvalidArgumentError("no program to run; see --help");
  if (options.module && options.no_python) {
    return absl::InvalidArgumentError("--module needs python3 and --no_python forbids it: give one of them");
  }
  if (options.run_path && (options.module || options.no_python)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--run_path runs a program in a way of its own: leave out ",
                     options.module ? "--module" : "--no_python"));
  }
  return absl::OkStatus();
}

absl::Status check_streams(const LaunchOptions& options) {
  const std::optional<std::set<int>>& shown = options.streams.shown;
  for (const auto& [name, largest] : {std::pair("--redirects", options.streams.redirects.largest_rank()),
                                      std::pair("--tee", options.streams.tee.largest_rank()),
                                      std::pair("--local_ranks_filter", shown ? *shown->rbegin() : -1)}) {
    if (largest >= options.nproc_per_node) {
      return absl::InvalidArgumentError(absl::StrCat("option ", name, ": local rank ", largest,
                                                     " is not in 0..", options.nproc_per_node - 1,
                                                     " (--nproc_per_node=", options.nproc_per_node, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchOptions> resolve_options(OptionDraft draft) {
  GRADWIRE_RETURN_IF_ERROR(check_program(draft.options));
  GRADWIRE_RETURN_IF_ERROR(resolve_roles(draft));
  GRADWIRE_RETURN_IF_ERROR(check_streams(draft.options));
  GRADWIRE_RETURN_IF_ERROR(apply_cluster(draft));
  GRADWIRE_RETURN_IF_ERROR(resolve_backend(draft));
  GRADWIRE_RETURN_IF_ERROR(check_nodes(draft.options));
  LaunchOptions options = std::move(draft.options);
  if (options.elastic()) {
    // Ranks follow from who is there.
    options.node_rank.reset();
  } else {
    options.conf.last_call_timeout = absl::ZeroDuration();
  }
  return options;
}

}  // namespace gradwire::tools
