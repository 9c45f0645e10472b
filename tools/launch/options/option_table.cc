#include "gradwire/tools/launch/options/option_table.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gradwire/base/error.h"
#include "gradwire/base/flight/trace_settings.h"
#include "gradwire/tools/launch/options/name_pattern.h"
#include "gradwire/tools/launch/options/option_values.h"

namespace gradwire::tools {
namespace {

using Kind = LaunchSecurity::Kind;

// The names that LaunchInfo::name() gives to workers without --worker_name.
constexpr char kDefaultName[] = "{role}{role_rank}";

bool has_certificate(const SecurityDraft& draft) {
  return !draft.certificate_file.empty() || !draft.key_file.empty() || !draft.authority_file.empty();
}

bool chosen(const SecurityDraft& draft) {
  return draft.insecure || draft.secure || !draft.token_file.empty() || has_certificate(draft);
}

// The user's choice on the command line stands against all variables.
absl::Status read_variables(SecurityDraft& draft, const Variables& variable) {
  if (chosen(draft)) return absl::OkStatus();
  draft.token_file = variable("GRADWIRE_TOKEN_FILE").value_or("");
  draft.certificate_file = variable("GRADWIRE_CERTIFICATE_FILE").value_or("");
  draft.key_file = variable("GRADWIRE_KEY_FILE").value_or("");
  draft.authority_file = variable("GRADWIRE_AUTHORITY_FILE").value_or("");
  // As in the workers, this variable has no effect beside a token or certificates.
  if (chosen(draft)) return absl::OkStatus();
  if (const std::optional<std::string> insecure = variable("GRADWIRE_INSECURE")) {
    GRADWIRE_RETURN_IF_ERROR(
        with_context(parse_bool(*insecure, draft.insecure), "environment variable GRADWIRE_INSECURE"));
  }
  return absl::OkStatus();
}

absl::Status check_consistent(const SecurityDraft& draft) {
  std::vector<absl::string_view> kinds;
  if (!draft.token_file.empty()) kinds.push_back("--token_file");
  if (has_certificate(draft)) kinds.push_back("--certificate_file, --key_file and --authority_file");
  if (draft.secure) kinds.push_back("--secure");
  if (draft.insecure) kinds.push_back("--insecure");
  if (kinds.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("a job is protected in one way: got ",
                                                   absl::StrJoin(kinds, " and "), "; give one of them"));
  }
  if (has_certificate(draft) &&
      (draft.certificate_file.empty() || draft.key_file.empty() || draft.authority_file.empty())) {
    return absl::InvalidArgumentError(
        "--certificate_file, --key_file and --authority_file belong together: give all three or none");
  }
  const bool for_workers = !draft.worker_certificate_file.empty() || !draft.worker_key_file.empty();
  if (for_workers &&
      (!has_certificate(draft) || draft.worker_certificate_file.empty() || draft.worker_key_file.empty())) {
    return absl::InvalidArgumentError(
        "--worker_certificate_file and --worker_key_file belong together, and to --certificate_file: give "
        "all "
        "or none");
  }
  return absl::OkStatus();
}

absl::Status check_worker_name(const std::string& pattern, const LaunchOptions& options) {
  const bool several = options.nproc_per_node > 1 || options.max_nodes > 1;
  if (pattern.empty() || !several || has_rank_field(pattern)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("option --worker_name: \"", pattern,
                                                 "\" gives several workers the same name: use {rank} or "
                                                 "{role_rank} in it"));
}

bool is_loopback_endpoint(const std::string& text) {
  const absl::StatusOr<store::Endpoint> endpoint = store::parse_endpoint(text);
  return endpoint.ok() && store::is_loopback(endpoint->host);
}

// The address at which other hosts would reach the job, or "" if all its nodes are on this host.
std::string address_for_others(const LaunchOptions& options) {
  if (!options.local_addr.empty() && !store::is_loopback(options.local_addr)) return options.local_addr;
  if (options.backend != RendezvousBackend::kEtcd) {
    return store::is_loopback(options.master_addr) ? "" : options.master_addr;
  }
  // The address of the round's store is that of the route to etcd.
  const auto elsewhere =
      std::find_if_not(options.endpoints.begin(), options.endpoints.end(), is_loopback_endpoint);
  return elsewhere == options.endpoints.end() ? "" : *elsewhere;
}

absl::StatusOr<Kind> choose_kind(const SecurityDraft& draft, const Variables& variable,
                                 const LaunchOptions& options) {
  if (draft.insecure) return Kind::kInsecure;
  if (!draft.token_file.empty()) return Kind::kToken;
  if (has_certificate(draft)) return Kind::kCertificates;
  if (draft.secure) {
    if (options.max_nodes == 1) return Kind::kNewCertificates;
    return absl::InvalidArgumentError(
        "--secure makes certificates for a job on one node: with --nnodes above 1 make them yourself, and "
        "give "
        "--certificate_file, --key_file and --authority_file");
  }
  if (options.max_nodes == 1) return Kind::kNewToken;
  if (variable("GRADWIRE_TOKEN_FD")) return Kind::kToken;
  const std::string address = address_for_others(options);
  if (address.empty()) return Kind::kThisHost;
  return absl::InvalidArgumentError(absl::StrCat(
      "the nodes meet at ", address,
      ", where other hosts can connect, and nothing says who may: give all nodes the same --token_file (make "
      "it "
      "with --make_token), or --certificate_file, --key_file and --authority_file, or --insecure if every "
      "process in the network is trusted"));
}

}  // namespace

absl::StatusOr<LaunchSecurity> resolve_security(SecurityDraft draft, const Variables& variable,
                                                const LaunchOptions& options) {
  GRADWIRE_RETURN_IF_ERROR(read_variables(draft, variable));
  GRADWIRE_RETURN_IF_ERROR(check_consistent(draft));
  GRADWIRE_RETURN_IF_ERROR(check_worker_name(draft.worker_name, options));
  GRADWIRE_ASSIGN_OR_RETURN(const Kind kind, choose_kind(draft, variable, options));
  if (kind == Kind::kNewCertificates && draft.worker_name.empty()) draft.worker_name = kDefaultName;
  return LaunchSecurity{.kind = kind,
                        .token_file = std::move(draft.token_file),
                        .certificate_file = std::move(draft.certificate_file),
                        .key_file = std::move(draft.key_file),
                        .authority_file = std::move(draft.authority_file),
                        .worker_certificate_file = std::move(draft.worker_certificate_file),
                        .worker_key_file = std::move(draft.worker_key_file),
                        .worker_name = std::move(draft.worker_name),
                        .allow_unauthenticated_pytorch = draft.allow_unauthenticated_pytorch};
}

namespace {

using Value = OptionRow::Value;

absl::Status set_flag(bool& flag, absl::string_view value) {
  if (!value.empty()) return parse_bool(value, flag);
  flag = true;
  return absl::OkStatus();
}

absl::Status parse_workers(OptionDraft& draft, absl::string_view text) {
  const int gpus = text == "gpu" || text == "auto" ? draft.host_info->visible_gpus() : 0;
  if (text == "gpu" && gpus == 0) {
    return absl::InvalidArgumentError(
        "\"gpu\" starts one worker per visible GPU: got 0 GPUs, expected 1 or more; check NVIDIA's driver "
        "and CUDA_VISIBLE_DEVICES");
  }
  int workers = 0;
  if (text == "auto" || text == "cpu" || text == "gpu") {
    workers = std::clamp(gpus > 0 ? gpus : draft.host_info->cores, 1, kMaxWorkersPerNode);
  } else if (absl::Status status = parse_int(text, 1, kMaxWorkersPerNode, workers); !status.ok()) {
    return with_context(status, "expected a number of workers, auto, cpu or gpu");
  }
  draft.workers = workers;
  return absl::OkStatus();
}

absl::Status parse_backend(OptionDraft& draft, absl::string_view text) {
  const std::string name = absl::AsciiStrToLower(text);
  if (name == "store" || name == "c10d") {
    draft.backend = RendezvousBackend::kStore;
  } else if (name == "etcd" || name == "etcd-v2") {
    draft.backend = RendezvousBackend::kEtcd;
  } else if (name == "static") {
    draft.backend = RendezvousBackend::kStatic;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not one of store, etcd, static (or c10d, etcd-v2, older names of the first two)"));
  }
  return absl::OkStatus();
}

absl::Status parse_choice(absl::string_view text, std::initializer_list<absl::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(choices, ", ")));
}

absl::Status parse_path(absl::string_view text, std::string& path) {
  if (text.empty() || text.find('\0') != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(text), "\" is not a path"));
  }
  path = std::string(text);
  return absl::OkStatus();
}

template <std::string SecurityDraft::*member>
absl::Status read_path(OptionDraft& draft, absl::string_view text) {
  return parse_path(text, draft.security.*member);
}

template <std::string SecurityDraft::*member>
absl::Status read_pattern(OptionDraft& draft, absl::string_view text) {
  GRADWIRE_RETURN_IF_ERROR(check_name_pattern(text));
  return parse_path(text, draft.security.*member);
}

absl::Status parse_line_prefix(OptionDraft& draft, absl::string_view text) {
  draft.options.line_prefix = std::string(text);
  return check_name_pattern(text);
}

template <class T>
absl::Status assign(absl::StatusOr<T> result, T& value) {
  if (result.ok()) value = *std::move(result);
  return result.status();
}

constexpr OptionRow kOptions[] = {
    // Must be first: the environment is read in the order of this table, and with --standalone the rows with
    // places_nodes are ignored.
    {"standalone", 0, Value::kNone, "",
     "one node, localhost, a free port unless --master_port is given; other rendezvous options are ignored",
     false, [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.standalone, v); }},
    {"nnodes", 0, Value::kWanted, "N | MIN:MAX",
     "nodes of the job, each with a launcher of its own (default 1)", true,
     [](OptionDraft& d, absl::string_view v) {
       d.nodes_given = true;
       return parse_nodes(v, d.options.min_nodes, d.options.max_nodes);
     }},
    {"nproc_per_node", 0, Value::kWanted, "N",
     "workers on this node: a number, cpu (one per core), gpu (one per visible GPU) or auto (gpu where there "
     "is one, else cpu) (default 1)",
     false, &parse_workers},
    {"rdzv_backend", 0, Value::kWanted, "NAME",
     "the store of the rendezvous: static (on node 0, with node ranks), store (on the endpoint; also c10d) "
     "or etcd (also etcd-v2) (default store with --standalone or --rdzv_endpoint, else static)",
     true, &parse_backend},
    {"rdzv_endpoint", 0, Value::kWanted, "HOST[:PORT]",
     "the node that serves the store (default port 29400), or etcd's members, comma separated (default port "
     "2379)",
     true,
     [](OptionDraft& d, absl::string_view v) {
       d.endpoints.clear();
       return parse_host_ports(v, d.endpoints);
     }},
    {"rdzv_id", 0, Value::kWanted, "ID",
     "the job's id, the same on all nodes; run_id is the same (default: random; \"none\" with several nodes, "
     "but etcd needs one for each job)",
     false, [](OptionDraft& d, absl::string_view v) { return parse_run_id(v, d.options.run_id); }},
    {"rdzv_conf", 0, Value::kWanted, "NAME=VALUE,...",
     "seconds: join_timeout (or timeout; 600), last_call_timeout (30), close_timeout (30), "
     "keep_alive_interval (5), read_timeout (10, of etcd 60); keep_alive_max_attempt (3); is_host (true, "
     "false); for etcd cacert, cert, key (files), user, password",
     true, [](OptionDraft& d, absl::string_view v) { return parse_rendezvous_conf(v, d.options.conf); }},
    {"max_restarts", 0, Value::kWanted, "N", "how often a failed job is restarted (default 0)", false,
     [](OptionDraft& d, absl::string_view v) {
       return parse_int(v, 0, std::numeric_limits<int>::max(), d.options.max_restarts);
     }},
    {"monitor_interval", 0, Value::kWanted, "SECONDS", "no effect: workers are watched without polling",
     false,
     [](OptionDraft&, absl::string_view v) {
       absl::Duration unused;
       return parse_seconds(v, unused);
     }},
    {"start_method", 0, Value::kWanted, "NAME",
     "spawn, fork or forkserver; no effect: workers are started by exec", false,
     [](OptionDraft&, absl::string_view v) {
       return parse_choice(v, {"spawn", "fork", "forkserver"});
     }},
    {"role", 0, Value::kWanted, "NAME[:COUNT]",
     "role of this node's workers; with counts, repeatable: groups that make up nproc_per_node (default "
     "\"default\")",
     false, [](OptionDraft& d, absl::string_view v) { return parse_roles(v, d.roles); }},
    {"module", 'm', Value::kNone, "", "the program is the name of a Python module (python3 -m)", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.module, v); }},
    {"no_python", 0, Value::kNone, "", "run a program ending in .py as an executable, not by python3", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.no_python, v); }},
    {"run_path", 0, Value::kNone, "",
     "run the program by Python's runpy.run_path: a script, directory or archive", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.run_path, v); }},
    {"log_dir", 0, Value::kWanted, "DIR",
     "directory of the workers' files (default: a new temporary directory)", false,
     [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.options.log_dir); }},
    {"redirects", 'r', Value::kWanted, "WHAT",
     "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3 by local rank", false,
     [](OptionDraft& d, absl::string_view v) {
       return assign(StreamSpec::parse(v), d.options.streams.redirects);
     }},
    {"tee", 't', Value::kWanted, "WHAT",
     "streams that go to files and, with a prefix, to the launcher's own streams (as --redirects)", false,
     [](OptionDraft& d, absl::string_view v) { return assign(StreamSpec::parse(v), d.options.streams.tee); }},
    {"local_ranks_filter", 0, Value::kWanted, "RANKS",
     "local ranks whose streams go to the launcher's own, for example 0,2; does not affect files", false,
     [](OptionDraft& d, absl::string_view v) { return parse_ranks(v, d.options.streams.shown.emplace()); }},
    {"line_buffered", 0, Value::kOptional, "BOOL",
     "a worker's standard output is a pseudo terminal, so that each line appears at once (the default); "
     "=false: lines appear when the program flushes",
     false, [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.line_buffered, v); }},
    {"node_rank", 0, Value::kWanted, "N", "this node's rank, 0..nnodes-1 (default 0 with one node)", true,
     [](OptionDraft& d, absl::string_view v) {
       return parse_int(v, 0, kMaxNodes - 1, d.options.node_rank.emplace());
     }},
    {"master_addr", 0, Value::kWanted, "HOST", "host of node 0 (default 127.0.0.1)", true,
     [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.master_addr.emplace()); }},
    {"master_port", 0, Value::kWanted, "PORT",
     "port of the store on node 0; 0, with one node: a free port (default 29500)", true,
     [](OptionDraft& d, absl::string_view v) { return parse_int(v, 0, 65535, d.master_port.emplace()); }},
    {"local_addr", 0, Value::kWanted, "HOST",
     "address at which other nodes reach this one (default: found automatically)", true,
     [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.options.local_addr); }},
    {"use_env", 0, Value::kOptional, "BOOL",
     "ranks are in the environment (the default); =false: also --local_rank=N as the program's first "
     "argument",
     false, [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.use_env, v); }},
    {"line_prefix", 0, Value::kWanted, "PATTERN",
     "the prefix of teed lines, with {rank}, {local_rank}, {role} and {role_rank} (default [{role}N]:, where "
     "N "
     "counts this node's workers of the role)",
     false, &parse_line_prefix},
    {"log_level", 0, Value::kWanted, "LEVEL",
     "Gradwire's log in the launcher and the workers, from this level on: debug, info, warning, error or off "
     "(default: GRADWIRE_LOG_LEVEL, else warning)",
     false,
     [](OptionDraft& d, absl::string_view v) {
       d.options.log_level = std::string(v);
       return parse_choice(v, {"debug", "info", "warning", "error", "off"});
     }},
    {"log_format", 0, Value::kWanted, "FORMAT",
     "text, or json with one object a line, for the log and the launcher's own lines (default: "
     "GRADWIRE_LOG_FORMAT, else text)",
     false,
     [](OptionDraft& d, absl::string_view v) {
       d.options.log_format = std::string(v);
       return parse_choice(v, {"text", "json"});
     }},
    {"grace_period", 0, Value::kWanted, "SECONDS",
     "time between SIGTERM and SIGKILL when workers are ended (default 30)", false,
     [](OptionDraft& d, absl::string_view v) { return parse_seconds(v, d.options.grace_period); }},
    {"join_timeout", 0, Value::kWanted, "SECONDS",
     "how long to wait for the other nodes, as in --rdzv_conf (default 600)", true,
     [](OptionDraft& d, absl::string_view v) { return parse_seconds(v, d.options.conf.join_timeout); }},
    {"token_file", 0, Value::kWanted, "FILE",
     "the job's token, the same on all nodes; without it a job on one node gets a token of its own (default: "
     "GRADWIRE_TOKEN_FILE)",
     false, &read_path<&SecurityDraft::token_file>},
    {"make_token", 0, Value::kWanted, "FILE", "write a new token to FILE, which must not exist, and exit",
     false, [](OptionDraft& d, absl::string_view v) { return parse_path(v, d.options.make_token); }},
    {"secure", 0, Value::kNone, "",
     "encrypt by TLS, with certificates that the launcher makes for this job; one node only", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.security.secure, v); }},
    {"certificate_file", 0, Value::kWanted, "FILE",
     "the launcher's certificate (PEM), and the workers' too unless --worker_certificate_file is given "
     "(default: GRADWIRE_CERTIFICATE_FILE)",
     false, &read_path<&SecurityDraft::certificate_file>},
    {"key_file", 0, Value::kWanted, "FILE", "the key of that certificate (default: GRADWIRE_KEY_FILE)", false,
     &read_path<&SecurityDraft::key_file>},
    {"authority_file", 0, Value::kWanted, "FILE",
     "the authority that signs all certificates of the job (default: GRADWIRE_AUTHORITY_FILE)", false,
     &read_path<&SecurityDraft::authority_file>},
    {"worker_certificate_file", 0, Value::kWanted, "PATTERN",
     "the workers' certificates, with {rank}, {local_rank}, {role} and {role_rank} for each worker's own",
     false, &read_pattern<&SecurityDraft::worker_certificate_file>},
    {"worker_key_file", 0, Value::kWanted, "PATTERN", "the workers' keys, in the same way", false,
     &read_pattern<&SecurityDraft::worker_key_file>},
    {"worker_name", 0, Value::kWanted, "PATTERN",
     "the names of the workers, in the same way, as they call init_rpc (default with --secure: "
     "{role}{role_rank})",
     false, &read_pattern<&SecurityDraft::worker_name>},
    {"insecure", 0, Value::kNone, "",
     "no token and no certificates: every process that reaches a port of the job can take part in it", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.security.insecure, v); }},
    {"allow_unauthenticated_pytorch", 0, Value::kNone, "",
     "the job's store serves every client of PyTorch's TCPStore, which can prove nothing; without it only "
     "those "
     "of this user on the store's host",
     false,
     [](OptionDraft& d, absl::string_view v) {
       return set_flag(d.security.allow_unauthenticated_pytorch, v);
     }},
    {"metrics_address", 0, Value::kWanted, "HOST:PORT",
     "serve the metrics of this node's workers over HTTP, as /metrics for Prometheus; port 0: a free one",
     false, [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.options.metrics_address); }},
    {"metrics_insecure", 0, Value::kNone, "",
     "other hosts may read the metrics, without any proof: for a --metrics_address that is not loopback",
     false, [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.metrics_insecure, v); }},
    {"otlp_endpoint", 0, Value::kWanted, "URL",
     "push the metrics of this node's workers to the OpenTelemetry collector at https://HOST:PORT or "
     "http://HOST:PORT, by gRPC; the variables OTEL_... set the rest",
     false, [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.options.otlp_endpoint); }},
    {"page", 0, Value::kWanted, "HOST:PORT",
     "serve a page for browsers about the workers of all nodes, as inspect serve does; port 0: a free one. "
     "The "
     "launcher prints its address, which has a secret token",
     false, [](OptionDraft& d, absl::string_view v) { return parse_name(v, d.options.page); }},
    {"trace", 0, Value::kWanted, "DIR",
     "the workers record what they do, and at the end this node's trace.json for Perfetto is written to DIR",
     false, [](OptionDraft& d, absl::string_view v) { return parse_path(v, d.options.trace); }},
    {"trace_records", 0, Value::kWanted, "N",
     "with --trace, the number of calls that each worker keeps, 128 bytes each (default 32768)", false,
     [](OptionDraft& d, absl::string_view v) {
       return parse_int(v, 1, static_cast<int>(TraceSettings::kMostRecords), d.options.trace_records);
     }},
    {"help", 'h', Value::kNone, "", "this text", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.help, v); }},
    {"version", 0, Value::kNone, "", "the launcher's version", false,
     [](OptionDraft& d, absl::string_view v) { return set_flag(d.options.version, v); }},
};

// Options of torchrun that this launcher does not have, each with its replacement.
constexpr std::pair<absl::string_view, absl::string_view> kReplacements[] = {
    {"event_log_handler", "the launcher logs to standard error"},
    {"logs_specs", "use --log_dir, --redirects and --tee"},
    {"numa_binding", "start the launcher by numactl"},
    {"signals_to_handle", "SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the workers"},
    {"virtual_local_rank", "each worker sees all GPUs and uses the one of its local rank"},
};

std::string key_of(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

}  // namespace

absl::Span<const OptionRow> option_table() { return kOptions; }

const OptionRow* find_option(absl::string_view name) {
  std::string key = key_of(name);
  if (key == "run_id") key = "rdzv_id";
  for (const OptionRow& row : kOptions) {
    if (row.name == key) return &row;
  }
  return nullptr;
}

const OptionRow* find_option(char letter) {
  for (const OptionRow& row : kOptions) {
    if (row.letter == letter && letter != 0) return &row;
  }
  return nullptr;
}

absl::string_view replacement_of_option(absl::string_view name) {
  const std::string key = key_of(name);
  for (const auto& [other, instead] : kReplacements) {
    if (other == key) return instead;
  }
  return "";
}

}  // namespace gradwire::tools
