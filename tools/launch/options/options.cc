#include "gradwire/tools/launch/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/io/lines.h"
#include "gradwire/tools/launch/options/gpus.h"
#include "gradwire/tools/launch/options/name_pattern.h"
#include "gradwire/tools/launch/options/option_table.h"
#include "gradwire/tools/launch/options/option_values.h"

namespace gradwire::tools {
namespace {

constexpr int kMaxAttempts = 1000000;

template <auto member>
absl::Status read_duration(absl::string_view value, RendezvousConf& conf) {
  absl::Duration time;
  GRADWIRE_RETURN_IF_ERROR(parse_seconds(value, time));
  if (time <= absl::ZeroDuration()) return absl::InvalidArgumentError("the time must be positive, got 0");
  conf.*member = time;
  return absl::OkStatus();
}

template <std::string store::EtcdSecurity::*member>
absl::Status read_text(absl::string_view value, RendezvousConf& conf) {
  conf.etcd.*member = std::string(value);
  return value.empty() ? absl::InvalidArgumentError("the value is empty") : absl::OkStatus();
}

absl::Status read_last_call(absl::string_view value, RendezvousConf& conf) {
  return parse_seconds(value, conf.last_call_timeout);
}

absl::Status read_attempts(absl::string_view value, RendezvousConf& conf) {
  return parse_int(value, 1, kMaxAttempts, conf.keep_alive_max_attempt);
}

absl::Status read_is_host(absl::string_view value, RendezvousConf& conf) {
  return parse_bool(value, conf.is_host.emplace());
}

struct ConfRow {
  absl::string_view name;
  absl::Status (*read)(absl::string_view value, RendezvousConf& conf);
};

constexpr ConfRow kRows[] = {
    {"join_timeout", &read_duration<&RendezvousConf::join_timeout>},
    {"timeout", &read_duration<&RendezvousConf::join_timeout>},
    {"last_call_timeout", &read_last_call},
    {"close_timeout", &read_duration<&RendezvousConf::close_timeout>},
    {"keep_alive_interval", &read_duration<&RendezvousConf::keep_alive_interval>},
    {"keep_alive_max_attempt", &read_attempts},
    {"read_timeout", &read_duration<&RendezvousConf::read_timeout>},
    {"is_host", &read_is_host},
    {"cacert", &read_text<&store::EtcdSecurity::authority_file>},
    {"cert", &read_text<&store::EtcdSecurity::certificate_file>},
    {"key", &read_text<&store::EtcdSecurity::key_file>},
    {"user", &read_text<&store::EtcdSecurity::user>},
    {"password", &read_text<&store::EtcdSecurity::password>},
};

absl::Status read_part(absl::string_view part, RendezvousConf& conf) {
  const std::vector<absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
  const absl::string_view name = absl::StripAsciiWhitespace(pair[0]);
  if (pair.size() != 2) {
    // Do not print a part after a password: it may be the rest of a password that contains a comma.
    return absl::InvalidArgumentError(
        absl::StrCat(conf.etcd.password.empty() ? absl::StrCat("\"", name, "\"") : "a part",
                     " is not NAME=VALUE (a value cannot contain a comma)"));
  }
  for (const ConfRow& row : kRows) {
    if (row.name == name) return with_context(row.read(absl::StripAsciiWhitespace(pair[1]), conf), name);
  }
  const std::string known = absl::StrJoin(
      kRows, ", ", [](std::string* out, const ConfRow& row) { absl::StrAppend(out, row.name); });
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not one of ", known));
}

}  // namespace

absl::Status parse_rendezvous_conf(absl::string_view text, RendezvousConf& conf) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    if (absl::StripAsciiWhitespace(part).empty()) continue;
    GRADWIRE_RETURN_IF_ERROR(read_part(part, conf));
  }
  if (conf.etcd.certificate_file.empty() != conf.etcd.key_file.empty()) {
    return absl::InvalidArgumentError("cert and key belong together: give both or neither");
  }
  if (conf.etcd.user.empty() != conf.etcd.password.empty()) {
    return absl::InvalidArgumentError("user and password belong together: give both or neither");
  }
  return absl::OkStatus();
}

namespace {

using Value = OptionRow::Value;

absl::Status unknown_option(absl::string_view spelled) {
  const absl::string_view instead = replacement_of_option(absl::StripPrefix(spelled, "--"));
  if (!instead.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", spelled, " is supported only by torchrun: ", instead, "; see --help"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option ", spelled, "; see --help"));
}

// A parsed argument: "--log-dir=x", "-t3", "-t=3".
struct Split {
  std::string spelled;  // As written, for messages: "--log-dir".
  const OptionRow* row = nullptr;
  bool has_value = false;
  absl::string_view value;
};

absl::StatusOr<Split> split_option(absl::string_view arg) {
  const bool is_long = absl::StartsWith(arg, "--");
  const size_t end = is_long ? std::min(arg.find('='), arg.size()) : 2;
  Split split{.spelled = std::string(arg.substr(0, end)),
              .has_value = end < arg.size(),
              .value = absl::StripPrefix(arg.substr(end), "=")};
  split.row = is_long ? find_option(arg.substr(2, end - 2)) : find_option(arg[1]);
  if (split.row == nullptr) return unknown_option(is_long ? split.spelled : arg);
  if (split.has_value && split.row->value == Value::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", split.spelled, ": got \"", arg, "\", expected no value"));
  }
  if (split.has_value && split.value.empty() && split.row->value == Value::kOptional) {
    return absl::InvalidArgumentError(absl::StrCat("option ", split.spelled, ": expected a value after ="));
  }
  return split;
}

using Given = std::set<const OptionRow*>;

// Whether the options ask for something else than a job.
bool ends_early(const LaunchOptions& options) {
  return options.help || options.version || !options.make_token.empty();
}

// Reads the options, and after them the program.
// The first argument that is not an option is the program. All arguments after it belong to the program,
// even if they are spelled like options of the launcher.
absl::Status read_arguments(const std::vector<std::string>& args, OptionDraft& draft, Given& given) {
  size_t next = 0;
  while (next < args.size()) {
    const std::string& arg = args[next];
    if (arg == "--") {
      ++next;
      break;
    }
    if (arg.size() < 2 || arg[0] != '-') break;
    ++next;
    GRADWIRE_ASSIGN_OR_RETURN(Split split, split_option(arg));
    if (!split.has_value && split.row->value == Value::kWanted) {
      if (next == args.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("option ", split.spelled, " needs a value: ", split.row->value_name));
      }
      split.value = args[next++];
    }
    GRADWIRE_RETURN_IF_ERROR(
        with_context(split.row->apply(draft, split.value), absl::StrCat("option ", split.spelled)));
    if (ends_early(draft.options)) return absl::OkStatus();
    given.insert(split.row);
  }
  if (next < args.size()) {
    draft.options.program = args[next];
    draft.options.program_args.assign(args.begin() + next + 1, args.end());
  }
  return absl::OkStatus();
}

// Reads PET_NNODES and so on, as torchrun does, for options that are not among the arguments.
absl::Status read_environment(OptionDraft& draft, const Given& given) {
  for (const OptionRow& row : option_table()) {
    if (given.count(&row) > 0 || row.name == "help" || row.name == "version" || row.name == "make_token") {
      continue;
    }
    if (row.places_nodes && draft.options.standalone) continue;
    const std::string name = absl::StrCat("PET_", absl::AsciiStrToUpper(row.name));
    if (const std::optional<std::string> value = draft.host_info->variable(name)) {
      GRADWIRE_RETURN_IF_ERROR(
          with_context(row.apply(draft, *value), absl::StrCat("environment variable ", name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

LaunchHostInfo LaunchHostInfo::of_process() {
  return {.variable = [](const std::string& name) -> std::optional<std::string> {
            const char* value = std::getenv(name.c_str());
            if (value == nullptr || *value == '\0') return std::nullopt;
            return value;
          },
          .cores = std::max<int>(std::thread::hardware_concurrency(), 1),
          .visible_gpus = [] { return count_visible_gpus(); }};
}

std::string launch_usage() {
  std::string text =
      "usage: launch [options] program args...\n\n"
      "Starts copies of a program on this machine. The environment gives each copy its rank and the address\n"
      "of the job's store (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others, as with\n"
      "torchrun). When one copy fails, the launcher ends all of them. Options may be spelled with dashes or\n"
      "underscores. PET_<OPTION> in the environment (PET_NNODES, ...) sets an option that is not "
      "given.\n\n";
  constexpr size_t kIndent = 33, kWidth = 100;
  for (const OptionRow& row : option_table()) {
    std::string spelled = row.letter == 0 ? "    " : absl::StrFormat("-%c, ", row.letter);
    absl::StrAppend(&spelled, "--", row.name);
    if (row.value == Value::kOptional) absl::StrAppend(&spelled, "[=", row.value_name, "]");
    if (row.value == Value::kWanted) absl::StrAppend(&spelled, "=", row.value_name);
    absl::StrAppend(&text, absl::StrFormat("  %-30s ", spelled));
    if (spelled.size() > 30) absl::StrAppend(&text, "\n", std::string(kIndent, ' '));
    append_wrapped(text, row.help, kIndent, kWidth);
  }
  return text;
}

// Fills in the options that were not given, from the scheduler's environment and from defaults, and checks
// that the options fit together. Each option by itself was checked when it was parsed (option_table.cc).
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

}  // namespace

absl::StatusOr<LaunchOptions> parse_launch_options(const std::vector<std::string>& args,
                                                   const LaunchHostInfo& host_info) {
  OptionDraft draft{.host_info = &host_info};
  Given given;
  GRADWIRE_RETURN_IF_ERROR(read_arguments(args, draft, given));
  if (ends_early(draft.options)) return draft.options;
  GRADWIRE_RETURN_IF_ERROR(read_environment(draft, given));
  return resolve_options(std::move(draft));
}

}  // namespace gradwire::tools
