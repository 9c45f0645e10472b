#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/etcd/etcd_options.h"
#include "gradwire/tools/launch/options/cluster.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/options/security.h"
#include "gradwire/tools/launch/options/streams.h"

namespace gradwire::tools {

// Settings of the launchers' rendezvous: --rdzv_conf.
struct RendezvousConf {
  absl::Duration join_timeout = absl::Seconds(600);      // For the minimum number of nodes to join.
  absl::Duration last_call_timeout = absl::Seconds(30);  // For more nodes, after the minimum has joined.
  absl::Duration close_timeout = absl::Seconds(30);      // For the others to learn that the job is over.
  absl::Duration keep_alive_interval = absl::Seconds(5);
  int keep_alive_max_attempt = 3;  // A node is lost after so many intervals without a beat.
  // How long the store may be unreachable before it is lost. By default 60 s for etcd, which may be
  // restarted, and 10 s for a launcher's store, whose contents are lost with the launcher.
  std::optional<absl::Duration> read_timeout;
  std::optional<bool> is_host;  // Whether this launcher serves the store; if unset, decided by the endpoint.

  store::EtcdSecurity etcd;
};

// Parses "name=value,..." into `conf`. Settings that are not named stay unchanged. InvalidArgument names the
// invalid part, but not values that may be secret.
absl::Status parse_rendezvous_conf(absl::string_view text, RendezvousConf& conf);

// The kind of store that the launchers' rendezvous uses.
enum class RendezvousBackend {
  kStatic,  // A store on node 0; every node has its rank from the start.
  kStore,   // A store of the launcher at the endpoint.
  kEtcd,    // etcd.
};

// The launcher's options. Each comes from the first of these sources that has it: the command line, the
// PET_... variables, the cluster's scheduler, the defaults.
struct LaunchOptions {
  bool help = false;       // If set, nothing else is checked.
  bool version = false;    // The same.
  std::string make_token;  // The file to write a new token to. If not empty, the same.

  int nproc_per_node = 1;
  std::vector<RoleCount> roles = {{"default", 1}};  // The counts add up to nproc_per_node.
  int min_nodes = 1;
  int max_nodes = 1;  // If more than min_nodes, the job is elastic.
  // Unset in an elastic job. Otherwise always set with kStatic, and with the other backends if it was given.
  std::optional<int> node_rank;

  RendezvousBackend backend = RendezvousBackend::kStatic;
  // The address of the store, with kStatic and kStore.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;             // 0, with one node: the launcher chooses.
  std::vector<std::string> endpoints;  // With kEtcd, "host:port" each.
  RendezvousConf conf;
  bool standalone = false;
  std::string run_id;      // If empty, the launcher chooses.
  std::string local_addr;  // Address for other nodes; if empty, found automatically.
  int max_restarts = 0;

  std::string log_dir;  // If empty, a new temporary directory, if one is needed.
  StreamRoutes streams;
  std::string
      line_prefix;  // The pattern (name_pattern.h) of the prefix of teed lines. If empty, "[default0]:".
  std::string log_level;      // For GRADWIRE_LOG_LEVEL of launcher and workers; if empty, it stays as it is.
  std::string log_format;     // The same for GRADWIRE_LOG_FORMAT.
  bool line_buffered = true;  // See WorkerOutputs (tools/launch/job/outputs.h).

  bool use_env = true;  // If not, programs get --local_rank=N as first argument.
  bool no_python = false;
  bool module = false;
  bool run_path = false;

  absl::Duration grace_period = absl::Seconds(30);

  LaunchSecurity security;

  // Where the launcher serves the metrics of the workers of this node; empty: nowhere.
  std::string metrics_address;
  bool metrics_insecure = false;  // Whether other hosts may reach that address.
  std::string otlp_endpoint;      // The collector to which these metrics are pushed; empty: none.

  // Where the launcher serves the page about the job; empty: nowhere.
  std::string page;

  // Where the workers record what they do, and where the trace of this node is written; empty: nowhere.
  std::string trace;
  int trace_records =
      0;  // The least number of records of an agent; 0: the default (base/flight/trace_settings.h).

  // Lines to print before the job starts.
  std::vector<std::string> notes;

  std::string program;
  std::vector<std::string> program_args;

  bool elastic() const { return min_nodes < max_nodes; }
};

// The properties of the process and machine that the options depend on.
struct LaunchHostInfo {
  Variables variable;
  int cores = 1;  // Cores that this process may use.
  std::function<int()> visible_gpus;

  static LaunchHostInfo of_process();
};

// Parses the arguments of the launcher (without its own name). Dashes and underscores in names of options are
// equivalent. The first argument that is not an option is the program; the rest are its arguments.
// InvalidArgument names the invalid argument or variable.
absl::StatusOr<LaunchOptions> parse_launch_options(
    const std::vector<std::string>& args, const LaunchHostInfo& host_info = LaunchHostInfo::of_process());

// The text of --help.
std::string launch_usage();

}  // namespace gradwire::tools
