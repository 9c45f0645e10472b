#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/options/cluster.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/options/option_conf.h"
#include "gradwire/tools/launch/options/streams.h"

namespace gradwire::tools {

// The place in which the launchers of a job meet.
enum class RendezvousBackend {
  kStatic,  // in a store that the launcher of node 0 serves; every node has its rank from the start
  kStore,   // in a store that the launcher at the endpoint serves
  kEtcd,    // in etcd
};

// The launcher's task: from the command line, PET_... variables, a cluster's scheduler and defaults, in this
// order, and checked together.
struct LaunchOptions {
  bool help = false;     // then nothing else is checked
  bool version = false;  // the same

  int nproc_per_node = 1;
  std::vector<RoleCount> roles = {{"default", 1}};  // nproc_per_node together
  int min_nodes = 1;
  int max_nodes = 1;  // more than min_nodes: the job is elastic
  // Only in a job that is not elastic: always with kStatic, and with the others if it was given.
  std::optional<int> node_rank;

  RendezvousBackend backend = RendezvousBackend::kStatic;
  // Where the store is served, with kStatic and kStore.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;             // 0: the launcher chooses; then there is one node
  std::vector<std::string> endpoints;  // with kEtcd: "host:port" each
  RendezvousConf conf;
  bool standalone = false;
  std::string run_id;      // empty: the launcher chooses
  std::string local_addr;  // where other nodes reach this one; empty: the launcher finds out
  int max_restarts = 0;

  std::string log_dir;  // empty: a new temporary directory, if one is needed
  StreamRoutes streams;
  bool line_buffered = true;  // workers' standard output is a pseudo terminal (tools/launch/job/outputs.h)

  bool use_env = true;  // else programs get --local_rank=N as their first argument
  bool no_python = false;
  bool module = false;
  bool run_path = false;

  absl::Duration grace_period = absl::Seconds(30);

  // Lines for the user before the job starts.
  std::vector<std::string> notes;

  std::string program;
  std::vector<std::string> program_args;

  bool elastic() const { return min_nodes < max_nodes; }
};

// The process and machine, as far as the launcher's options depend on them.
struct LaunchHostInfo {
  Variables variable;
  int cores = 1;  // that this process may use
  std::function<int()> visible_gpus;

  static LaunchHostInfo of_process();
};

// Reads the arguments after the program's own name. Dashes and underscores in an option's name are the same.
// Options end at the first argument that is not one, the program; the rest belongs to it. InvalidArgument
// names the argument or variable that is wrong.
absl::StatusOr<LaunchOptions> parse_launch_options(
    const std::vector<std::string>& args, const LaunchHostInfo& host_info = LaunchHostInfo::of_process());

// The text of --help.
std::string launch_usage();

}  // namespace gradwire::tools
