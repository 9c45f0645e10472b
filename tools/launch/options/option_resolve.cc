// Fills in the options that were not given, from the scheduler's environment and from defaults, and checks
// that the options fit together. Each option by itself was checked when it was parsed (option_table.cc).

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/options/name_pattern.h"
#include "gradwire/tools/launch/options/option_table.h"

namespace gradwire::tools {
namespace {

// The default ports of torchrun and of etcd.
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
    // The last role counts, as with any option that is given twice.
    options.nproc_per_node = draft.workers.value_or(1);
    options.roles = {{draft.roles.empty() ? "default" : draft.roles.back().name, options.nproc_per_node}};
    return absl::OkStatus();
  }
  for (auto role = draft.roles.begin(); role != draft.roles.end(); ++role) {
    if (role->count == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("option --role: \"", role->name, "\" has no count, but other roles have one"));
    }
    if (std::any_of(draft.roles.begin(), role, [&](const RoleCount& r) { return r.name == role->name; })) {
      return absl::InvalidArgumentError(absl::StrCat("option --role: \"", role->name, "\" is given twice"));
    }
  }
  if (draft.workers && *draft.workers != total) {
    return absl::InvalidArgumentError(absl::StrCat("the counts of --role add up to ", total,
                                                   " workers, but --nproc_per_node=", *draft.workers));
  }
  if (total > kMaxWorkersPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --role: got ", total, " workers, the limit is ", kMaxWorkersPerNode));
  }
  options.nproc_per_node = total;
  options.roles = draft.roles;
  return absl::OkStatus();
}

// Fills in the values from the scheduler, as far as they are about the nodes that the command line means.
absl::Status apply_cluster(OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (options.standalone) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const std::optional<ClusterPlace> cluster,
                            read_cluster(draft.host_info->variable));
  if (!cluster) return absl::OkStatus();
  if (cluster->launchers_per_node > 1) {
    if (draft.nodes_given) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        cluster->system, " has started ", cluster->launchers_per_node,
        " launchers on a node: start one launcher per node, which starts --nproc_per_node workers "
        "(or use --standalone or --nnodes if each launcher runs a job of its own)"));
  }
  if (!draft.nodes_given && cluster->nnodes) options.min_nodes = options.max_nodes = *cluster->nnodes;
  if (!draft.nodes_given && !cluster->note.empty()) options.notes.push_back(cluster->note);
  if (options.run_id.empty() && cluster->run_id) {
    GRADWIRE_RETURN_IF_ERROR(
        with_context(parse_run_id(*cluster->run_id, options.run_id), "the scheduler's job id"));
  }
  // The scheduler's values do not apply to a job with another number of nodes, or with node ranks that the
  // user chose. A job with one node needs no address.
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
          absl::StrCat("node rank out of range: ", cluster->system, " reports node ", *options.node_rank,
                       ", expected 0..", options.max_nodes - 1, " (--nnodes=", options.max_nodes, ")"));
    }
    if (!draft.master_addr) {
      return absl::InvalidArgumentError(
          absl::StrCat(cluster->system, " does not report the address of node 0 of the ", options.max_nodes,
                       " nodes: give --master_addr or --rdzv_endpoint"));
    }
  }
  return absl::OkStatus();
}

RendezvousBackend default_backend(const OptionDraft& draft) {
  return draft.endpoints.empty() && !draft.options.elastic() ? RendezvousBackend::kStatic
                                                             : RendezvousBackend::kStore;
}

// Sets the address of the store: the endpoint, else --master_addr and --master_port.
absl::Status resolve_store(OptionDraft& draft, int default_port) {
  LaunchOptions& options = draft.options;
  if (draft.endpoints.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --rdzv_endpoint: got ", draft.endpoints.size(),
                     " endpoints, expected one (several are possible only with --rdzv_backend=etcd)"));
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
      return absl::InvalidArgumentError("--standalone is for one node: omit it with --nnodes above 1");
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
                         " needs --rdzv_backend=store or etcd: static has a fixed number of nodes"));
      }
      if (!options.node_rank) options.node_rank = 0;
      return resolve_store(draft, 29500);
    case RendezvousBackend::kStore:
      if (several && !located) {
        return absl::InvalidArgumentError(
            absl::StrCat("the rendezvous of up to ", options.max_nodes,
                         " nodes needs an endpoint: give the same --rdzv_endpoint=HOST:PORT on each node"));
      }
      return resolve_store(draft, located ? kStorePort : 0);
    case RendezvousBackend::kEtcd:
      if (draft.endpoints.empty()) {
        return absl::InvalidArgumentError("etcd's address is missing: give --rdzv_endpoint=HOST:PORT");
      }
      // etcd keeps the record of a finished job, so an id can be used for one job only.
      if (several && options.run_id.empty()) {
        return absl::InvalidArgumentError(
            "etcd keeps the records of finished jobs, so each job needs an id of its own: give the same "
            "--rdzv_id=ID on each node");
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
          "port 0 (a free port) is possible only with one node: give a port with --master_port or "
          "--rdzv_endpoint");
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
    return absl::InvalidArgumentError("--module and --no_python exclude each other: python3 runs a module");
  }
  if (options.run_path && (options.module || options.no_python)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--run_path cannot be combined with ", options.module ? "--module" : "--no_python"));
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

absl::Status check_trace(const LaunchOptions& options) {
  if (options.trace_records == 0 || !options.trace.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--trace_records=", options.trace_records,
      " has no effect without a trace: add --trace=DIR, or omit it (PET_TRACE_RECORDS sets it too)"));
}

// torchrun has no option for the prefix, but a variable, with ${role_name}, ${rank} and ${local_rank}.
absl::Status read_torchruns_prefix(OptionDraft& draft) {
  constexpr char kVariable[] = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
  const std::optional<std::string> text = draft.host_info->variable(kVariable);
  if (!text || !draft.options.line_prefix.empty()) return absl::OkStatus();
  draft.options.line_prefix = absl::StrReplaceAll(
      *text, {{"${role_name}", "{role}"}, {"${rank}", "{rank}"}, {"${local_rank}", "{local_rank}"}});
  return with_context(check_name_pattern(draft.options.line_prefix),
                      absl::StrCat("environment variable ", kVariable));
}

}  // namespace

// The order matters: the scheduler fills in only what the user left open, and the backend depends on the
// number of nodes that results. The checks come after all values are known.
absl::StatusOr<LaunchOptions> resolve_options(OptionDraft draft) {
  GRADWIRE_RETURN_IF_ERROR(check_program(draft.options));
  GRADWIRE_RETURN_IF_ERROR(resolve_roles(draft));
  GRADWIRE_RETURN_IF_ERROR(check_streams(draft.options));
  GRADWIRE_RETURN_IF_ERROR(check_trace(draft.options));
  GRADWIRE_RETURN_IF_ERROR(read_torchruns_prefix(draft));
  GRADWIRE_RETURN_IF_ERROR(apply_cluster(draft));
  GRADWIRE_RETURN_IF_ERROR(resolve_backend(draft));
  GRADWIRE_RETURN_IF_ERROR(check_nodes(draft.options));
  GRADWIRE_ASSIGN_OR_RETURN(
      draft.options.security,
      resolve_security(std::move(draft.security), draft.host_info->variable, draft.options));
  LaunchOptions options = std::move(draft.options);
  if (options.security.kind == LaunchSecurity::Kind::kInsecure) {
    options.notes.push_back(
        "the job is not protected (--insecure): every process that reaches one of its ports can take part in "
        "it");
  }
  if (options.security.allow_unauthenticated_pytorch) {
    options.notes.push_back(
        "the job's store serves every client of PyTorch's TCPStore (--allow_unauthenticated_pytorch): every "
        "process that reaches its port can read and change its keys");
  }
  if (options.elastic()) {
    // The ranks of an elastic job are assigned when the nodes join.
    options.node_rank.reset();
  } else {
    options.conf.last_call_timeout = absl::ZeroDuration();
  }
  return options;
}

}  // namespace gradwire::tools
