#include "tools/launch/options.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/error.h"

namespace gradwire::tools {
namespace {

constexpr int kMaxWorkersPerNode = 4096;
constexpr int kMaxNodes = 65536;

absl::Status parse_int(absl::string_view text, int low, int high, int& value) {
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number"));
  }
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat(text, " is not in ", low, "..", high));
  }
  return absl::OkStatus();
}

absl::Status parse_seconds(absl::string_view text, absl::Duration& value) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds <= 1e9)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number of seconds"));
  }
  value = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status parse_workers(absl::string_view text, int& value) {
  if (text == "auto" || text == "cpu") {
    value = std::clamp<int>(std::thread::hardware_concurrency(), 1, kMaxWorkersPerNode);
    return absl::OkStatus();
  }
  if (text == "gpu") {
    return absl::InvalidArgumentError("\"gpu\" needs a build with CUDA, and this is a build without it");
  }
  absl::Status status = parse_int(text, 1, kMaxWorkersPerNode, value);
  if (!status.ok()) return with_context(status, "neither a number of workers nor auto or cpu");
  return status;
}

// torchrun's MIN:MAX too, as long as both say the same: the number of nodes does not change while a job runs.
absl::Status parse_nodes(absl::string_view text, int& value) {
  const std::vector<absl::string_view> range = absl::StrSplit(text, ':');
  if (range.size() > 2 || (range.size() == 2 && range[0] != range[1])) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not one number: the number of nodes is fixed"));
  }
  return parse_int(range[0], 1, kMaxNodes, value);
}

// The id names a directory.
absl::Status parse_run_id(absl::string_view text, std::string& value) {
  if (text.empty() || text.size() > 128 || text == "." || text == ".." || absl::StrContains(text, '/') ||
      absl::StrContains(text, '\n')) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" cannot name a directory"));
  }
  value = std::string(text);
  return absl::OkStatus();
}

absl::Status parse_name(absl::string_view text, std::string& value) {
  if (text.empty() || text.size() > 255 || absl::StrContains(text, '\n')) {
    return absl::InvalidArgumentError("a name of 1..255 characters on one line is wanted");
  }
  value = std::string(text);
  return absl::OkStatus();
}

template <class T>
absl::Status assign(absl::StatusOr<T> result, T& value) {
  if (result.ok()) value = *std::move(result);
  return result.status();
}

struct OptionRow {
  absl::string_view name;
  char letter;              // 0: none
  absl::string_view value;  // how --help calls the value; empty: the option takes none
  absl::string_view help;
  absl::Status (*apply)(LaunchOptions& options, absl::string_view value);
};

constexpr OptionRow kOptions[] = {
    {"nproc_per_node", 0, "N", "workers on this node: a number, or auto or cpu for one per core (default 1)",
     [](LaunchOptions& o, absl::string_view v) { return parse_workers(v, o.nproc_per_node); }},
    {"nnodes", 0, "N", "nodes of the job, each with a launcher of its own (default 1)",
     [](LaunchOptions& o, absl::string_view v) { return parse_nodes(v, o.nnodes); }},
    {"node_rank", 0, "N", "this node's rank, 0..nnodes-1 (default 0)",
     [](LaunchOptions& o, absl::string_view v) { return parse_int(v, 0, kMaxNodes - 1, o.node_rank); }},
    {"master_addr", 0, "HOST", "where the launcher of node 0 runs (default 127.0.0.1)",
     [](LaunchOptions& o, absl::string_view v) { return parse_name(v, o.master_addr); }},
    {"master_port", 0, "PORT", "where it serves the store; 0 with one node: a free port (default 29500)",
     [](LaunchOptions& o, absl::string_view v) { return parse_int(v, 0, 65535, o.master_port); }},
    {"standalone", 0, "", "one node, localhost, a free port unless --master_port is given",
     [](LaunchOptions& o, absl::string_view) {
       o.standalone = true;
       return absl::OkStatus();
     }},
    {"role", 0, "NAME", "what this node's workers are; the prefix of their teed lines (default \"default\")",
     [](LaunchOptions& o, absl::string_view v) { return parse_name(v, o.role); }},
    {"run_id", 0, "ID", "the job's id; rdzv_id is the same (default: random; \"none\" with several nodes)",
     [](LaunchOptions& o, absl::string_view v) { return parse_run_id(v, o.run_id); }},
    {"log_dir", 0, "DIR", "where --redirects and --tee put their files (default: a new temporary directory)",
     [](LaunchOptions& o, absl::string_view v) { return parse_name(v, o.log_dir); }},
    {"redirects", 'r', "WHAT",
     "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3 by local rank",
     [](LaunchOptions& o, absl::string_view v) { return assign(StreamSpec::parse(v), o.redirects); }},
    {"tee", 't', "WHAT",
     "streams that go to files and, with a prefix, to the launcher's own (as --redirects)",
     [](LaunchOptions& o, absl::string_view v) { return assign(StreamSpec::parse(v), o.tee); }},
    {"module", 'm', "", "the program is the name of a Python module (python3 -m)",
     [](LaunchOptions& o, absl::string_view) {
       o.module = true;
       return absl::OkStatus();
     }},
    {"no_python", 0, "", "run a program ending in .py as an executable, not by python3",
     [](LaunchOptions& o, absl::string_view) {
       o.no_python = true;
       return absl::OkStatus();
     }},
    {"grace_period", 0, "SECONDS", "from the signal that asks workers to end to SIGKILL (default 30)",
     [](LaunchOptions& o, absl::string_view v) { return parse_seconds(v, o.grace_period); }},
    {"join_timeout", 0, "SECONDS", "how long to wait for the other nodes' launchers (default 300)",
     [](LaunchOptions& o, absl::string_view v) { return parse_seconds(v, o.join_timeout); }},
    {"max_restarts", 0, "0", "accepted for torchrun's sake: a failed job is not started again",
     [](LaunchOptions&, absl::string_view v) {
       int restarts = 0;
       absl::Status status = parse_int(v, 0, 0, restarts);
       return status.ok()
                  ? status
                  : absl::InvalidArgumentError("failed jobs are not started again; only 0 can be said");
     }},
    {"help", 'h', "", "this text",
     [](LaunchOptions& o, absl::string_view) {
       o.help = true;
       return absl::OkStatus();
     }},
};

// torchrun's options for what this launcher does in another way, and that way.
constexpr std::pair<absl::string_view, absl::string_view> kElsewhere[] = {
    {"rdzv_backend", "nodes meet in the store at --master_addr and --master_port"},
    {"rdzv_endpoint", "use --master_addr and --master_port"},
    {"rdzv_conf", "use --join_timeout"},
    {"monitor_interval", "workers are watched without polling"},
    {"start_method", "workers are always started by exec"},
    {"local_ranks_filter", "choose ranks with --tee=0:3"},
    {"run_path", "programs are started by exec"},
};

const OptionRow* find_long(absl::string_view name) {
  std::string key = absl::StrReplaceAll(name, {{"-", "_"}});
  if (key == "rdzv_id") key = "run_id";
  for (const OptionRow& row : kOptions) {
    if (row.name == key) return &row;
  }
  return nullptr;
}

const OptionRow* find_letter(char letter) {
  for (const OptionRow& row : kOptions) {
    if (row.letter == letter && letter != 0) return &row;
  }
  return nullptr;
}

absl::Status unknown_option(absl::string_view spelled, absl::string_view name) {
  const std::string key = absl::StrReplaceAll(name, {{"-", "_"}});
  for (const auto& [other, instead] : kElsewhere) {
    if (other == key) {
      return absl::InvalidArgumentError(
          absl::StrCat("option ", spelled, " is torchrun's alone: ", instead, "; see --help"));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option ", spelled, "; see --help"));
}

// One argument taken apart: "--log-dir=x", "-t3", "-t=3".
struct Split {
  std::string spelled;  // "--log-dir", for messages
  const OptionRow* row = nullptr;
  bool has_value = false;
  absl::string_view value;
};

absl::StatusOr<Split> split_option(absl::string_view arg) {
  Split split;
  if (absl::StartsWith(arg, "--")) {
    const size_t equals = arg.find('=');
    split.spelled = std::string(arg.substr(0, equals));
    split.row = find_long(split.spelled.substr(2));
    split.has_value = equals != absl::string_view::npos;
    if (split.has_value) split.value = arg.substr(equals + 1);
    if (split.row == nullptr) return unknown_option(split.spelled, split.spelled.substr(2));
  } else {
    split.spelled = std::string(arg.substr(0, 2));
    split.row = find_letter(arg[1]);
    split.has_value = arg.size() > 2;
    split.value = arg.substr(2);
    if (absl::StartsWith(split.value, "=")) split.value.remove_prefix(1);
    if (split.row == nullptr) return unknown_option(arg, arg.substr(1));
  }
  if (split.has_value && split.row->value.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", split.spelled, " takes no value (\"", arg, "\")"));
  }
  return split;
}

absl::Status check(const LaunchOptions& options) {
  if (options.program.empty()) return absl::InvalidArgumentError("no program to run; see --help");
  if (options.module && options.no_python) {
    return absl::InvalidArgumentError("--module needs python3 and --no_python forbids it: give one of them");
  }
  if (options.standalone && options.nnodes != 1) {
    return absl::InvalidArgumentError("--standalone means one node; leave it out with --nnodes above 1");
  }
  if (options.node_rank >= options.nnodes) {
    return absl::InvalidArgumentError(absl::StrCat("option --node_rank: ", options.node_rank,
                                                   " is not in 0..", options.nnodes - 1,
                                                   " (--nnodes=", options.nnodes, ")"));
  }
  if (options.nnodes > 1 && options.master_port == 0) {
    return absl::InvalidArgumentError(
        "option --master_port: 0 (a free port) cannot be known to other nodes; give a port");
  }
  for (const auto& [name, spec] :
       {std::pair("--redirects", &options.redirects), std::pair("--tee", &options.tee)}) {
    if (spec->largest_rank() >= options.nproc_per_node) {
      return absl::InvalidArgumentError(absl::StrCat("option ", name, ": local rank ", spec->largest_rank(),
                                                     " is not in 0..", options.nproc_per_node - 1,
                                                     " (--nproc_per_node=", options.nproc_per_node, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchOptions> parse_launch_options(const std::vector<std::string>& args) {
  LaunchOptions options;
  bool port_given = false;
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
    if (!split.has_value && !split.row->value.empty()) {
      if (next == args.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("option ", split.spelled, " wants a value: ", split.row->value));
      }
      split.value = args[next++];
    }
    absl::Status applied = split.row->apply(options, split.value);
    if (!applied.ok()) return with_context(applied, absl::StrCat("option ", split.spelled));
    if (options.help) return options;
    if (split.row->name == "master_port") port_given = true;
  }
  if (next < args.size()) {
    options.program = args[next];
    options.program_args.assign(args.begin() + next + 1, args.end());
  }
  if (options.standalone) {
    options.master_addr = "localhost";
    if (!port_given) options.master_port = 0;
  }
  GRADWIRE_RETURN_IF_ERROR(check(options));
  return options;
}

std::string launch_usage() {
  std::string text =
      "usage: launch [options] program args...\n\n"
      "Starts copies of a program on this machine, tells each its rank and where to meet the others in the\n"
      "environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others, as torchrun does), "
      "and\n"
      "ends all of them when one fails. Options may be spelled with dashes or underscores.\n\n";
  for (const OptionRow& row : kOptions) {
    std::string spelled = row.letter == 0 ? "    " : absl::StrFormat("-%c, ", row.letter);
    absl::StrAppend(&spelled, "--", row.name, row.value.empty() ? "" : "=", row.value);
    absl::StrAppend(&text, absl::StrFormat("  %-28s %s\n", spelled, row.help));
  }
  return text;
}

}  // namespace gradwire::tools
