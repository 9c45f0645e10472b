#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/launch/streams.h"

namespace gradwire::tools {

// What the launcher's command line says.
struct LaunchOptions {
  bool help = false;  // then nothing else is checked

  int nproc_per_node = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";  // "localhost" with --standalone
  int master_port = 29500;                // 0: the launcher chooses
  bool standalone = false;
  std::string run_id;  // empty: the launcher chooses
  std::string role = "default";

  std::string log_dir;  // empty: a new temporary directory, if one is needed
  StreamSpec redirects;
  StreamSpec tee;

  bool no_python = false;
  bool module = false;

  absl::Duration grace_period = absl::Seconds(30);
  absl::Duration join_timeout = absl::Seconds(300);

  std::string program;
  std::vector<std::string> program_args;
};

// Reads the arguments after the program's own name. Dashes and underscores in an option's name are the same.
// Options end at the first argument that is none, the program; what follows belongs to it. InvalidArgument
// names the argument that is wrong.
absl::StatusOr<LaunchOptions> parse_launch_options(const std::vector<std::string>& args);

// The text of --help.
std::string launch_usage();

}  // namespace gradwire::tools
