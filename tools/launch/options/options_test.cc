#include "gradwire/tools/launch/options/options.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace gradwire::tools {
namespace {

using Args = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;
using Roles = std::vector<RoleCount>;

// Parses on a simulated machine with 6 cores and `gpus` GPUs. Jobs on several hosts need not say how they are
// protected: that has tests of its own (option_security_test.cc).
absl::StatusOr<LaunchOptions> parse(const Args& args, Environment environment = {}, int gpus = 0) {
  environment.insert({"GRADWIRE_INSECURE", "1"});
  return parse_launch_options(args, {.variable = [&](const std::string& name) -> std::optional<std::string> {
                                       const auto found = environment.find(name);
                                       if (found == environment.end()) return std::nullopt;
                                       return found->second;
                                     },
                                     .cores = 6,
                                     .visible_gpus = [gpus] { return gpus; }});
}

struct GoodRow {
  const char* name;
  Args args;
  std::function<bool(const LaunchOptions&)> holds;
  Environment environment = {};
  int gpus = 0;
};

void expect_understood(const std::vector<GoodRow>& rows) {
  for (const GoodRow& row : rows) {
    absl::StatusOr<LaunchOptions> options = parse(row.args, row.environment, row.gpus);
    ASSERT_TRUE(options.ok()) << row.name << ": " << options.status();
    EXPECT_TRUE(row.holds(*options)) << row.name;
  }
}

bool has_store(const LaunchOptions& o, RendezvousBackend backend, const std::string& host, int port) {
  return o.backend == backend && o.master_addr == host && o.master_port == port;
}

TEST(ParseLaunchOptions, GoodCommandLinesAreUnderstood) {
  expect_understood({
      {"defaults",
       {"p"},
       [](const LaunchOptions& o) {
         return o.program == "p" && o.program_args.empty() && o.nproc_per_node == 1 && o.min_nodes == 1 &&
                o.max_nodes == 1 && o.node_rank == 0 && o.use_env && !o.standalone && !o.module &&
                !o.no_python && !o.run_path && o.roles == Roles{{"default", 1}} && o.max_restarts == 0 &&
                has_store(o, RendezvousBackend::kStatic, "127.0.0.1", 29500) &&
                o.grace_period == absl::Seconds(30) && o.conf.join_timeout == absl::Seconds(600);
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
       {"--nproc_per_node=cpu", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 6; },
       {},
       2},
      {"one worker per GPU",
       {"--nproc_per_node=gpu", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 2; },
       {},
       2},
      {"auto is one worker per GPU",
       {"--nproc_per_node=auto", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 2; },
       {},
       2},
      {"auto is one worker per core without GPUs",
       {"--nproc_per_node=auto", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 6; }},
      {"a range of one number",
       {"--nnodes=2:2", "p"},
       [](const LaunchOptions& o) { return o.max_nodes == 2 && !o.elastic() && o.node_rank == 0; }},
      {"standalone with a port",
       {"--master_port=77", "--standalone", "p"},
       [](const LaunchOptions& o) { return o.master_port == 77; }},
      {"short forms",
       {"-m", "-r", "1", "-t3", "p"},
       [](const LaunchOptions& o) {
         return o.module && o.streams.redirects.of(0) == Streams{.out = true} &&
                o.streams.tee.of(0) == Streams{.out = true, .err = true};
       }},
      {"short form with equals",
       {"-t=2", "p"},
       [](const LaunchOptions& o) { return o.streams.tee.of(0) == Streams{.err = true}; }},
      {"streams by local rank",
       {"--nproc_per_node=3", "--tee=0:1,2:3", "--local-ranks-filter=0,2", "p"},
       [](const LaunchOptions& o) {
         return o.streams.tee.of(0) == Streams{.out = true} && o.streams.tee.of(1) == Streams{} &&
                o.streams.tee.of(2) == Streams{.out = true, .err = true} &&
                o.streams.shown == std::set<int>{0, 2};
       }},
      {"logs and a label",
       {"--log-dir=/l", "--role=ps", "--nproc_per_node=2", "--run_id=job", "p"},
       [](const LaunchOptions& o) {
         return o.log_dir == "/l" && o.roles == Roles{{"ps", 2}} && o.run_id == "job";
       }},
      {"a fraction of a second",
       {"--grace_period=0.5", "p"},
       [](const LaunchOptions& o) { return o.grace_period == absl::Milliseconds(500); }},
      {"options end at the program",
       {"--no-python", "p", "--role=x", "-t", "--", "--help"},
       [](const LaunchOptions& o) {
         return o.no_python && o.program == "p" && o.roles == Roles{{"default", 1}} &&
                o.program_args == Args{"--role=x", "-t", "--", "--help"};
       }},
      {"options end at two dashes",
       {"--role=x", "--", "--strange", "a"},
       [](const LaunchOptions& o) { return o.program == "--strange" && o.program_args == Args{"a"}; }},
      {"the last of two labels",
       {"--role=x", "--role=y", "p"},
       [](const LaunchOptions& o) {
         return o.roles == Roles{{"y", 1}};
       }},
      {"help needs no program", {"--help"}, [](const LaunchOptions& o) { return o.help; }},
      {"short help", {"-h"}, [](const LaunchOptions& o) { return o.help; }},
      {"version needs no program", {"--version"}, [](const LaunchOptions& o) { return o.version; }},
      {"log",
       {"--log-level=debug", "--log_format", "json", "--line_prefix=[{role} {rank}] ", "p"},
       [](const LaunchOptions& o) {
         return o.log_level == "debug" && o.log_format == "json" && o.line_prefix == "[{role} {rank}] ";
       }},
      {"log from the environment",
       {"p"},
       [](const LaunchOptions& o) {
         return o.log_level == "off" && o.log_format == "text" &&
                o.line_prefix == "{role}/{local_rank}/{rank}:";
       },
       {{"PET_LOG_LEVEL", "off"},
        {"PET_LOG_FORMAT", "text"},
        {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name}/${local_rank}/${rank}:"}}},
      {"no trace", {"p"}, [](const LaunchOptions& o) { return o.trace.empty() && o.trace_records == 0; }},
      {"trace",
       {"--trace=/tmp/t", "--trace-records", "100", "p"},
       [](const LaunchOptions& o) { return o.trace == "/tmp/t" && o.trace_records == 100; }},
      {"trace from the environment",
       {"p"},
       [](const LaunchOptions& o) { return o.trace == "/tmp/t" && o.trace_records == 524'288; },
       {{"PET_TRACE", "/tmp/t"}, {"PET_TRACE_RECORDS", "524288"}}},
      {"lines at once", {"p"}, [](const LaunchOptions& o) { return o.line_buffered; }},
      {"lines as programs flush them",
       {"--line-buffered=false", "p"},
       [](const LaunchOptions& o) { return !o.line_buffered; }},
      {"groups of roles",
       {"--role=server:1", "--role", "trainer:4", "p"},
       [](const LaunchOptions& o) {
         return o.nproc_per_node == 5 && o.roles == Roles{{"server", 1}, {"trainer", 4}};
       }},
      {"groups of roles in one value, and their sum",
       {"--role=server:1,trainer:4", "--nproc_per_node=5", "p"},
       [](const LaunchOptions& o) { return o.nproc_per_node == 5 && o.roles.size() == 2; }},
      {"options without effect",
       {"--monitor_interval=0.1", "--start-method=forkserver", "p"},
       [](const LaunchOptions& o) { return o.program == "p"; }},
      {"run_path", {"--run_path", "dir"}, [](const LaunchOptions& o) { return o.run_path; }},
      {"an address of this node",
       {"--local_addr=10.0.0.3", "p"},
       [](const LaunchOptions& o) { return o.local_addr == "10.0.0.3"; }},
  });
}

// The usage examples of torchrun's documentation.
TEST(ParseLaunchOptions, TorchrunsExamplesMeanTheSame) {
  expect_understood({
      {"single node",
       {"--standalone", "--nnodes=1", "--nproc-per-node=4", "train.py", "--arg1"},
       [](const LaunchOptions& o) {
         return o.standalone && o.nproc_per_node == 4 &&
                has_store(o, RendezvousBackend::kStore, "localhost", 0) && o.program_args == Args{"--arg1"};
       }},
      {"stacked single node",
       {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", "--nproc-per-node=4", "train.py"},
       [](const LaunchOptions& o) {
         return has_store(o, RendezvousBackend::kStore, "localhost", 0) && !o.node_rank;
       }},
      {"fault tolerant",
       {"--nnodes=3", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1.example.com:29400", "train.py"},
       [](const LaunchOptions& o) {
         return o.min_nodes == 3 && o.max_nodes == 3 && o.max_restarts == 3 && o.run_id == "job" &&
                !o.node_rank && has_store(o, RendezvousBackend::kStore, "node1.example.com", 29400) &&
                o.conf.last_call_timeout == absl::ZeroDuration();
       }},
      {"elastic",
       {"--nnodes=1:4", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1.example.com", "train.py"},
       [](const LaunchOptions& o) {
         return o.elastic() && o.min_nodes == 1 && o.max_nodes == 4 &&
                has_store(o, RendezvousBackend::kStore, "node1.example.com", 29400) &&
                o.conf.last_call_timeout == absl::Seconds(30);
       }},
      {"static",
       {"--nnodes=2", "--node-rank=1", "--master-addr=192.168.1.1", "--master-port=1234", "train.py"},
       [](const LaunchOptions& o) {
         return o.node_rank == 1 && has_store(o, RendezvousBackend::kStatic, "192.168.1.1", 1234);
       }},
      {"static at an endpoint",
       {"--nnodes=2", "--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint=h:1234", "train.py"},
       [](const LaunchOptions& o) {
         return o.node_rank == 1 && has_store(o, RendezvousBackend::kStatic, "h", 1234);
       }},
      {"an endpoint alone means the store",
       {"--nnodes=2", "--rdzv-endpoint=[fe80::1]:12", "train.py"},
       [](const LaunchOptions& o) { return has_store(o, RendezvousBackend::kStore, "fe80::1", 12); }},
      {"an address of version 6 without a port",
       {"--nnodes=2", "--rdzv-endpoint=fe80::1", "train.py"},
       [](const LaunchOptions& o) { return has_store(o, RendezvousBackend::kStore, "fe80::1", 29400); }},
      {"an endpoint and node ranks",
       {"--nnodes=2", "--node-rank=1", "--rdzv-endpoint=h", "train.py"},
       [](const LaunchOptions& o) { return o.backend == RendezvousBackend::kStore && o.node_rank == 1; }},
      {"one node in a store of its own",
       {"--rdzv-backend=store", "train.py"},
       [](const LaunchOptions& o) { return has_store(o, RendezvousBackend::kStore, "127.0.0.1", 0); }},
      {"etcd",
       {"--nnodes=2:8", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=e1:2379,e2,[fe80::1]", "--rdzv-id=job",
        "--rdzv-conf=cacert=/ca.pem,cert=/c.pem,key=/k.pem,user=u,password=p=w", "train.py"},
       [](const LaunchOptions& o) {
         return o.backend == RendezvousBackend::kEtcd && o.elastic() &&
                o.conf.etcd.authority_file == "/ca.pem" && o.conf.etcd.certificate_file == "/c.pem" &&
                o.conf.etcd.key_file == "/k.pem" && o.conf.etcd.user == "u" &&
                o.conf.etcd.password == "p=w" && o.endpoints == Args{"e1:2379", "e2:2379", "[fe80::1]:2379"};
       }},
      {"rendezvous configuration",
       {"--rdzv-conf=timeout=900, last_call_timeout=1.5,keep_alive_interval=2,keep_alive_max_attempt=5,"
        "read_timeout=10,close_timeout=3,is_host=1",
        "--nnodes=1:2", "--rdzv-endpoint=h", "train.py"},
       [](const LaunchOptions& o) {
         return o.conf.join_timeout == absl::Seconds(900) &&
                o.conf.last_call_timeout == absl::Milliseconds(1500) &&
                o.conf.keep_alive_interval == absl::Seconds(2) && o.conf.keep_alive_max_attempt == 5 &&
                o.conf.read_timeout == absl::Seconds(10) && o.conf.close_timeout == absl::Seconds(3) &&
                o.conf.is_host == true;
       }},
      {"--join_timeout",
       {"--join_timeout=7", "p"},
       [](const LaunchOptions& o) { return o.conf.join_timeout == absl::Seconds(7); }},
      {"the old launcher",
       {"--nproc_per_node=2", "--nnodes=2", "--node_rank=0", "--master_addr=h", "--use_env=false",
        "train.py"},
       [](const LaunchOptions& o) { return !o.use_env && o.nproc_per_node == 2; }},
      {"the old launcher's flag",
       {"--use_env", "train.py"},
       [](const LaunchOptions& o) { return o.use_env; }},
      {"standalone overrides the rendezvous options",
       {"--standalone", "--rdzv_backend=etcd", "--rdzv_endpoint=h:1", "--rdzv_id=job", "p"},
       [](const LaunchOptions& o) {
         return has_store(o, RendezvousBackend::kStore, "localhost", 0) && o.run_id == "job";
       }},
  });
}

TEST(ParseLaunchOptions, EnvironmentIsReadForMissingArguments) {
  const Environment pet = {{"PET_NNODES", "2"},
                           {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "4"},
                           {"PET_MASTER_ADDR", "host0"},
                           {"PET_MASTER_PORT", "333"},
                           {"PET_ROLE", "a:1,b:3"},
                           {"PET_TEE", "3"},
                           {"PET_NO_PYTHON", "1"},
                           {"PET_RDZV_ID", "job"}};
  expect_understood({
      {"all of it",
       {"p"},
       [](const LaunchOptions& o) {
         return o.max_nodes == 2 && o.node_rank == 1 && o.nproc_per_node == 4 && o.roles.size() == 2 &&
                has_store(o, RendezvousBackend::kStatic, "host0", 333) && o.no_python && o.run_id == "job" &&
                o.streams.tee.of(3) == Streams{.out = true, .err = true};
       },
       pet},
      {"arguments win",
       {"--nnodes=3", "--node_rank=2", "--role=x", "p"},
       [](const LaunchOptions& o) {
         return o.max_nodes == 3 && o.node_rank == 2 && o.roles == Roles{{"x", 4}};
       },
       pet},
      {"standalone ignores variables about other nodes",
       {"--standalone", "p"},
       [](const LaunchOptions& o) { return o.max_nodes == 1 && o.master_port == 0 && o.nproc_per_node == 4; },
       pet},
      {"standalone by the environment",
       {"p"},
       [](const LaunchOptions& o) { return o.standalone; },
       {{"PET_STANDALONE", "1"}, {"PET_NNODES", "2"}}},
      {"a flag that is off",
       {"p"},
       [](const LaunchOptions& o) { return !o.module; },
       {{"PET_MODULE", "0"}, {"PET_HELP", "1"}}},
  });
}

const Environment kSlurm = {{"SLURM_JOB_ID", "9"},         {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_NODES", "4"}, {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_NODEID", "2"},         {"SLURM_STEP_NODELIST", "n[1-4]"}};
const Environment kMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
const Environment kPod = {{"JOB_COMPLETION_INDEX", "2"}};

TEST(ParseLaunchOptions, SchedulerIsReadForMissingOptions) {
  expect_understood({
      {"Slurm provides all",
       {"p"},
       [](const LaunchOptions& o) {
         return o.max_nodes == 4 && o.node_rank == 2 && o.run_id == "9.0" &&
                has_store(o, RendezvousBackend::kStatic, "n1", 29500);
       },
       kSlurm},
      {"Slurm's nodes in a store",
       {"--rdzv_backend=store", "p"},
       [](const LaunchOptions& o) {
         return o.max_nodes == 4 && !o.node_rank && has_store(o, RendezvousBackend::kStore, "n1", 29400);
       },
       kSlurm},
      {"Slurm's first node for an elastic job",
       {"--nnodes=2:4", "p"},
       [](const LaunchOptions& o) {
         return o.elastic() && !o.node_rank && has_store(o, RendezvousBackend::kStore, "n1", 29400);
       },
       kSlurm},
      {"an endpoint wins over Slurm's",
       {"--rdzv_endpoint=h:1", "p"},
       [](const LaunchOptions& o) {
         return o.max_nodes == 4 && !o.node_rank && has_store(o, RendezvousBackend::kStore, "h", 1);
       },
       kSlurm},
      {"options of templates for torchrun",
       {"--nnodes=4", "--node_rank=2", "--master_addr=n1", "--rdzv_id=x", "p"},
       [](const LaunchOptions& o) { return o.node_rank == 2 && o.master_addr == "n1" && o.run_id == "x"; },
       kSlurm},
      {"standalone in a step",
       {"--standalone", "p"},
       [](const LaunchOptions& o) { return o.max_nodes == 1 && o.master_addr == "localhost"; },
       kSlurm},
      {"a separate job on one node of a step",
       {"--nnodes=1", "p"},
       [](const LaunchOptions& o) { return o.node_rank == 0 && o.master_addr == "127.0.0.1"; },
       kSlurm},
      {"alone in an allocation",
       {"p"},
       [](const LaunchOptions& o) { return o.max_nodes == 1 && o.notes.size() == 2; },
       {{"SLURM_JOB_ID", "9"}, {"SLURM_NNODES", "4"}, {"SLURM_NODEID", "0"}}},
      {"several launchers on a node, each for itself",
       {"--nnodes=1", "--master_port=0", "p"},
       [](const LaunchOptions& o) { return o.max_nodes == 1 && o.node_rank == 0; },
       {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}},
      {"mpirun and an address",
       {"--master_addr=h", "p"},
       [](const LaunchOptions& o) { return o.max_nodes == 2 && o.node_rank == 1 && o.master_addr == "h"; },
       kMpi},
      {"a pod of an indexed Job",
       {"--nnodes=3", "--master_addr=job-0.svc", "p"},
       [](const LaunchOptions& o) { return o.node_rank == 2 && o.master_addr == "job-0.svc"; },
       kPod},
      {"a pod that is a job of its own",
       {"p"},
       [](const LaunchOptions& o) { return o.max_nodes == 1 && o.node_rank == 0; },
       kPod},
  });
}

struct BadRow {
  Args args;
  std::vector<std::string> named;  // Texts that the message must contain.
  Environment environment = {};
};

TEST(ParseLaunchOptions, BadCommandLinesAreRefusedByName) {
  const std::vector<BadRow> rows = {
      {{}, {"no program", "--help"}},
      {{"--role=x"}, {"no program"}},
      {{"--nonsense", "p"}, {"unknown option --nonsense", "--help"}},
      {{"--nproc=2", "p"}, {"unknown option --nproc"}},
      {{"-x", "p"}, {"unknown option -x"}},
      {{"--logs-specs=x", "p"}, {"--logs-specs", "--log_dir"}},
      {{"--nproc_per_node=two", "p"}, {"--nproc_per_node", "\"two\""}},
      {{"--nproc_per_node=0", "p"}, {"--nproc_per_node", "1..4096"}},
      {{"--nproc_per_node=99999999999999", "p"}, {"--nproc_per_node"}},
      {{"--nproc_per_node=gpu", "p"}, {"--nproc_per_node", "visible GPU", "got 0 GPUs"}},
      {{"--nnodes=1:4", "p"}, {"4 nodes", "--rdzv_endpoint"}},
      {{"--nnodes=1:4", "--rdzv_backend=static", "p"}, {"--nnodes=1:4", "static"}},
      {{"--nnodes=4:1", "p"}, {"--nnodes", "4:1"}},
      {{"--nnodes=1:2:3", "p"}, {"--nnodes", "MIN:MAX"}},
      {{"--nnodes=0", "p"}, {"--nnodes"}},
      {{"--nnodes=2", "--rdzv_backend=c10d", "p"}, {"--rdzv_endpoint"}},
      {{"--nnodes=2", "--node_rank=2", "p"}, {"--node_rank", "0..1"}},
      {{"--node_rank", "-1", "p"}, {"--node_rank"}},
      {{"--nnodes=2", "--standalone", "p"}, {"--standalone"}},
      {{"--nnodes=2", "--master_port=0", "p"}, {"--master_port"}},
      {{"--nnodes=2", "--rdzv_endpoint=h:0", "p"}, {"--rdzv_endpoint"}},
      {{"--master_port=65536", "p"}, {"--master_port", "65535"}},
      {{"--master_port=http", "p"}, {"--master_port", "\"http\""}},
      {{"--master_addr=", "p"}, {"--master_addr"}},
      {{"--rdzv_backend=zeus", "p"}, {"--rdzv_backend", "\"zeus\"", "store, etcd, static"}},
      {{"--rdzv_backend=etcd", "p"}, {"etcd", "--rdzv_endpoint"}},
      {{"--rdzv_backend=etcd", "--rdzv_endpoint=e", "--nnodes=2", "p"}, {"etcd", "--rdzv_id"}},
      {{"--rdzv_endpoint=a,b", "p"}, {"--rdzv_endpoint", "2 endpoints", "etcd"}},
      {{"--rdzv_endpoint=h:x", "p"}, {"--rdzv_endpoint", "h:x"}},
      {{"--rdzv_endpoint=h:70000", "p"}, {"--rdzv_endpoint", "65535"}},
      {{"--rdzv_endpoint=[fe80::1", "p"}, {"--rdzv_endpoint", "]"}},
      {{"--rdzv_endpoint=[fe80::1]12", "p"}, {"--rdzv_endpoint"}},
      {{"--rdzv_endpoint=:12", "p"}, {"--rdzv_endpoint"}},
      {{"--rdzv_endpoint=http://h:1", "p"}, {"--rdzv_endpoint", "http://h:1"}},
      {{"--rdzv_conf=speed=3", "p"}, {"--rdzv_conf", "\"speed\"", "join_timeout", "keep_alive_max_attempt"}},
      {{"--rdzv_conf=timeout", "p"}, {"--rdzv_conf", "timeout", "NAME=VALUE"}},
      {{"--rdzv_conf=timeout=0", "p"}, {"--rdzv_conf", "timeout"}},
      {{"--rdzv_conf=keep_alive_interval=x", "p"}, {"keep_alive_interval", "\"x\""}},
      {{"--rdzv_conf=keep_alive_max_attempt=0", "p"}, {"keep_alive_max_attempt"}},
      {{"--rdzv_conf=is_host=maybe", "p"}, {"is_host", "maybe"}},
      {{"--rdzv_conf=cert=/c", "--rdzv_backend=etcd", "--rdzv_endpoint=e", "p"}, {"cert and key"}},
      {{"--rdzv_conf=user=u", "--rdzv_backend=etcd", "--rdzv_endpoint=e", "p"}, {"user and password"}},
      {{"--rdzv_conf=cacert=/c", "p"}, {"--rdzv_conf", "cacert", "etcd"}},
      {{"--role"}, {"--role", "value"}},
      {{"--role=a:1", "--role=b", "p"}, {"--role", "\"b\"", "count"}},
      {{"--role=a:1,a:2", "p"}, {"--role", "\"a\"", "twice"}},
      {{"--role=a:0", "p"}, {"--role", "a:0"}},
      {{"--role=a:1:2", "p"}, {"--role", "NAME:COUNT"}},
      {{"--role=:2", "p"}, {"--role"}},
      {{"--role=a/b:2", "p"}, {"--role", "a/b", "A-Z"}},
      {{"--role=a b", "p"}, {"--role", "a b", "A-Z"}},
      {{"--role=a:1,b:4", "--nproc_per_node=4", "p"}, {"5 workers", "--nproc_per_node=4"}},
      {{"--role=a:4000,b:4000", "p"}, {"--role", "8000", "4096"}},
      {{"--standalone=yes", "p"}, {"--standalone", "no value"}},
      {{"-m3", "p"}, {"-m", "no value"}},
      {{"--use_env=maybe", "p"}, {"--use_env", "maybe"}},
      {{"--use_env=", "p"}, {"--use_env"}},
      {{"--tee=4", "p"}, {"--tee", "\"4\""}},
      {{"--tee=", "p"}, {"--tee"}},
      {{"--redirects=0:1,0:2", "--nproc_per_node=2", "p"}, {"--redirects", "twice"}},
      {{"--redirects=0:1,", "p"}, {"--redirects"}},
      {{"--redirects=-1:1", "p"}, {"--redirects"}},
      {{"--tee=1:3", "p"}, {"--tee", "local rank 1", "0..0"}},
      {{"--local_ranks_filter=0,1", "p"}, {"--local_ranks_filter", "local rank 1"}},
      {{"--local_ranks_filter=x", "p"}, {"--local_ranks_filter", "\"x\""}},
      {{"--run_id=a/b", "p"}, {"--run_id", "a/b"}},
      {{"--grace_period=-1", "p"}, {"--grace_period"}},
      {{"--grace_period=nan", "p"}, {"--grace_period"}},
      {{"--max_restarts=-1", "p"}, {"--max_restarts"}},
      {{"--monitor_interval=often", "p"}, {"--monitor_interval", "often"}},
      {{"--start_method=thread", "p"}, {"--start_method", "forkserver"}},
      {{"--module", "--no_python", "p"}, {"--module", "--no_python"}},
      {{"--run_path", "--no_python", "p"}, {"--run_path", "--no_python"}},
      {{"--run_path", "-m", "p"}, {"--run_path", "--module"}},
      {{"--trace_records=100", "p"}, {"--trace_records=100", "--trace=DIR"}},
      {{"p"}, {"--trace_records=9", "PET_TRACE_RECORDS", "--trace=DIR"}, {{"PET_TRACE_RECORDS", "9"}}},
      {{"p"}, {"PET_NNODES", "\"x\""}, {{"PET_NNODES", "x"}}},
      {{"p"}, {"PET_STANDALONE", "\"x\""}, {{"PET_STANDALONE", "x"}}},
      {{"p"}, {"Open MPI", "2 nodes", "--master_addr"}, kMpi},
      {{"p"},
       {"Open MPI", "2 launchers on a node", "--standalone"},
       {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}},
      {{"--nnodes=3", "p"}, {"Kubernetes", "--master_addr"}, kPod},
      {{"--nnodes=2", "--master_addr=h", "p"}, {"Kubernetes", "node 2", "0..1"}, kPod},
      {{"p"}, {"SLURM_NODEID"}, {{"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "2"}}},
  };
  for (const BadRow& row : rows) {
    absl::StatusOr<LaunchOptions> options = parse(row.args, row.environment);
    ASSERT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument)
        << ::testing::PrintToString(row.args);
    const std::string message(options.status().message());
    for (const std::string& named : row.named) {
      EXPECT_NE(message.find(named), std::string::npos) << message << "\n  lacks " << named;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ParseLaunchOptions, PasswordsAreNotPrinted) {
  const absl::Status status = parse({"--rdzv_conf=user=u,password=top,secret", "p"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("secret"), absl::string_view::npos) << status;
}

TEST(LaunchUsage, EveryOptionIsListed) {
  const std::string usage = launch_usage();
  for (const char* option : {"nnodes",
                             "nproc_per_node",
                             "rdzv_backend",
                             "rdzv_endpoint",
                             "rdzv_id",
                             "rdzv_conf",
                             "standalone",
                             "max_restarts",
                             "monitor_interval",
                             "start_method",
                             "role",
                             "module",
                             "no_python",
                             "run_path",
                             "log_dir",
                             "redirects",
                             "tee",
                             "local_ranks_filter",
                             "node_rank",
                             "master_addr",
                             "master_port",
                             "local_addr",
                             "use_env",
                             "grace_period",
                             "help",
                             "join_timeout",
                             "line_buffered",
                             "version",
                             "token_file",
                             "make_token",
                             "secure",
                             "insecure",
                             "allow_unauthenticated_pytorch",
                             "certificate_file",
                             "key_file",
                             "authority_file",
                             "worker_name",
                             "worker_certificate_file",
                             "worker_key_file"}) {
    EXPECT_NE(usage.find(std::string("--") + option), std::string::npos) << option;
  }
  for (absl::string_view line : absl::StrSplit(usage, '\n')) EXPECT_LE(line.size(), 105u) << line;
}

}  // namespace
}  // namespace gradwire::tools
