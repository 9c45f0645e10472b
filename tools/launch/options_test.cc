#include "tools/launch/options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace gradwire::tools {
namespace {

using Args = std::vector<std::string>;

struct GoodRow {
  const char* name;
  Args args;
  std::function<bool(const LaunchOptions&)> holds;
};

bool both(const StreamSpec& spec, int rank, Streams streams) { return spec.of(rank) == streams; }

TEST(ParseLaunchOptions, GoodCommandLinesAreUnderstood) {
  const std::vector<GoodRow> rows = {
      {"defaults",
       {"p"},
       [](const LaunchOptions& o) {
         return o.program == "p" && o.program_args.empty() && o.nproc_per_node == 1 && o.nnodes == 1 &&
                o.node_rank == 0 && o.master_addr == "127.0.0.1" && o.master_port == 29500 &&
                o.role == "default" && !o.standalone && !o.module && !o.no_python &&
                o.grace_period == absl::Seconds(30);
       }},
      {"underscores and equals",
       {"--nproc_per_node=3", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 3; }},
      {"dashes and a separate value",
       {"--nproc-per-node", "3", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 3 && o.program == "p"; }},
      {"mixed spelling",
       {"--nproc-per_node=3", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 3; }},
      {"one worker per core",
       {"--nproc_per_node=auto", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node >= 1; }},
      {"cpu is the same",
       {"--nproc_per_node=cpu", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node >= 1; }},
      {"nodes",
       {"--nnodes=4", "--node_rank=3", "--master_addr=h", "--master_port=1234", "p"},
       [](const LaunchOptions& o) {
         return o.nnodes == 4 && o.node_rank == 3 && o.master_addr == "h" && o.master_port == 1234;
       }},
      {"a range of one number", {"--nnodes=2:2", "p"}, [](const LaunchOptions& o) { return o.nnodes == 2; }},
      {"standalone chooses the port",
       {"--standalone", "p"},
       [](const LaunchOptions& o) {
         return o.standalone && o.master_addr == "localhost" && o.master_port == 0;
       }},
      {"standalone with a port",
       {"--master_port=77", "--standalone", "p"},
       [](const LaunchOptions& o) { return o.master_port == 77; }},
      {"short forms",
       {"-m", "-r", "1", "-t3", "p"},
       [](const LaunchOptions& o) {
         return o.module && both(o.redirects, 0, {.out = true}) && both(o.tee, 0, {.out = true, .err = true});
       }},
      {"short form with equals",
       {"-t=2", "p"},
       [](const LaunchOptions& o) { return both(o.tee, 0, {.err = true}); }},
      {"streams by local rank",
       {"--nproc_per_node=3", "--tee=0:1,2:3", "p"},
       [](const LaunchOptions& o) {
         return both(o.tee, 0, {.out = true}) && both(o.tee, 1, {}) &&
                both(o.tee, 2, {.out = true, .err = true});
       }},
      {"logs and role",
       {"--log-dir=/l", "--role=ps", "--rdzv_id=job", "p"},
       [](const LaunchOptions& o) { return o.log_dir == "/l" && o.role == "ps" && o.run_id == "job"; }},
      {"a fraction of a second",
       {"--grace_period=0.5", "p"},
       [](const LaunchOptions& o) { return o.grace_period == absl::Milliseconds(500); }},
      {"options end at the program",
       {"--no-python", "p", "--role=x", "-t", "--", "--help"},
       [](const LaunchOptions& o) {
         return o.no_python && o.program == "p" && o.role == "default" &&
                o.program_args == Args{"--role=x", "-t", "--", "--help"};
       }},
      {"options end at two dashes",
       {"--role=x", "--", "--strange", "a"},
       [](const LaunchOptions& o) { return o.program == "--strange" && o.program_args == Args{"a"}; }},
      {"the last of two counts",
       {"--role=x", "--role=y", "p"},
       [](const LaunchOptions& o) { return o.role == "y"; }},
      {"no restarts", {"--max_restarts=0", "p"}, [](const LaunchOptions& o) { return o.program == "p"; }},
      {"help needs no program", {"--help"}, [](const LaunchOptions& o) { return o.help; }},
      {"short help", {"-h"}, [](const LaunchOptions& o) { return o.help; }},
  };
  for (const GoodRow& row : rows) {
    absl::StatusOr<LaunchOptions> options = parse_launch_options(row.args);
    ASSERT_TRUE(options.ok()) << row.name << ": " << options.status();
    EXPECT_TRUE(row.holds(*options)) << row.name;
  }
}

struct BadRow {
  Args args;
  std::vector<std::string> named;  // what the message must contain
};

TEST(ParseLaunchOptions, BadCommandLinesAreRefusedByName) {
  const std::vector<BadRow> rows = {
      {{}, {"no program", "--help"}},
      {{"--role=x"}, {"no program"}},
      {{"--nonsense", "p"}, {"unknown option --nonsense", "--help"}},
      {{"--nproc=2", "p"}, {"unknown option --nproc"}},
      {{"-x", "p"}, {"unknown option -x"}},
      {{"--rdzv_endpoint=h:1", "p"}, {"--rdzv_endpoint", "--master_addr"}},
      {{"--rdzv-backend=c10d", "p"}, {"--rdzv-backend"}},
      {{"--nproc_per_node=two", "p"}, {"--nproc_per_node", "\"two\""}},
      {{"--nproc_per_node=0", "p"}, {"--nproc_per_node", "1..4096"}},
      {{"--nproc_per_node=99999999999999", "p"}, {"--nproc_per_node"}},
      {{"--nproc_per_node=gpu", "p"}, {"--nproc_per_node", "CUDA"}},
      {{"--nnodes=1:4", "p"}, {"--nnodes", "fixed"}},
      {{"--nnodes=0", "p"}, {"--nnodes"}},
      {{"--nnodes=2", "--node_rank=2", "p"}, {"--node_rank", "0..1"}},
      {{"--node_rank", "-1", "p"}, {"--node_rank"}},
      {{"--nnodes=2", "--standalone", "p"}, {"--standalone"}},
      {{"--nnodes=2", "--master_port=0", "p"}, {"--master_port"}},
      {{"--master_port=65536", "p"}, {"--master_port", "65535"}},
      {{"--master_port=http", "p"}, {"--master_port", "\"http\""}},
      {{"--master_addr=", "p"}, {"--master_addr"}},
      {{"--role"}, {"--role", "value"}},
      {{"--standalone=yes", "p"}, {"--standalone", "no value"}},
      {{"-m3", "p"}, {"-m", "no value"}},
      {{"--tee=4", "p"}, {"--tee", "\"4\""}},
      {{"--tee=", "p"}, {"--tee"}},
      {{"--redirects=0:1,0:2", "--nproc_per_node=2", "p"}, {"--redirects", "twice"}},
      {{"--redirects=0:1,", "p"}, {"--redirects"}},
      {{"--redirects=-1:1", "p"}, {"--redirects"}},
      {{"--tee=1:3", "p"}, {"--tee", "local rank 1", "0..0"}},
      {{"--run_id=a/b", "p"}, {"--run_id", "a/b"}},
      {{"--grace_period=-1", "p"}, {"--grace_period"}},
      {{"--grace_period=nan", "p"}, {"--grace_period"}},
      {{"--max_restarts=3", "p"}, {"--max_restarts"}},
      {{"--module", "--no_python", "p"}, {"--module", "--no_python"}},
  };
  for (const BadRow& row : rows) {
    absl::StatusOr<LaunchOptions> options = parse_launch_options(row.args);
    ASSERT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument)
        << testing::PrintToString(row.args);
    const std::string message(options.status().message());
    for (const std::string& named : row.named) {
      EXPECT_NE(message.find(named), std::string::npos) << message << "\n  lacks " << named;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(LaunchUsage, EveryOptionStandsThere) {
  const std::string usage = launch_usage();
  for (const char* option :
       {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "standalone", "log_dir",
        "redirects", "tee", "role", "no_python", "module", "grace_period", "help"}) {
    EXPECT_NE(usage.find(std::string("--") + option), std::string::npos) << option;
  }
}

}  // namespace
}  // namespace gradwire::tools
