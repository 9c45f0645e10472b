#include <iterator>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

std::string number(std::mt19937& random) {
  const char* const numbers[] = {"0",     "1",  "2",          "3", "4", "65535",
                                 "65536", "-1", "2147483648", "",  "x", "1.5"};
  return numbers[random() % (random() % 4 == 0 ? 12 : 5)];
}

std::string argument(std::mt19937& random) {
  const char* const flags[] = {"--standalone",
                               "--module",
                               "-m",
                               "--no_python",
                               "--run_path",
                               "--use_env",
                               "--use_env=false",
                               "--line_buffered=no",
                               "--help",
                               "--version",
                               "--make_token=t",
                               "--make_token",
                               "--token_file=t",
                               "-t3",
                               "-r=0:1,1:2",
                               "--tee=3",
                               "--redirects=0:1",
                               "--local_ranks_filter=0,1",
                               "--local-ranks-filter=0",
                               "--log-dir=d",
                               "--trace=d",
                               "--trace-records=9",
                               "--trace_records=0",
                               "--rdzv_backend=static",
                               "--rdzv_backend=c10d",
                               "--rdzv_backend=etcd",
                               "--rdzv_endpoint=host:29400",
                               "--rdzv_endpoint=[::1]:1,h",
                               "--rdzv-id=job",
                               "--rdzv_conf=join_timeout=3,last_call_timeout=1",
                               "--rdzv_conf=cacert=/c,user=u,password=p",
                               "--master_addr=host",
                               "--local_addr=10.0.0.1",
                               "--start_method=fork",
                               "--signals_to_handle=TERM",
                               "--grace_period=1.5",
                               "--join_timeout=3",
                               "--nproc_per_node=gpu",
                               "--nproc_per_node=cpu",
                               "--role=a:1",
                               "--role=b:2",
                               "--role=a"};
  const char* const counts[] = {"--nnodes=",       "--nproc_per_node=",   "--node_rank=",   "--master_port=",
                                "--max_restarts=", "--monitor_interval=", "--join-timeout="};
  switch (random() % 5) {
    case 0:
      return absl::StrCat(counts[random() % 7], number(random));
    case 1:
      return absl::StrCat("--nnodes=", number(random), ":", number(random));
    case 2: {
      // The value is an argument of its own.
      std::string text = absl::StrCat(counts[random() % 7], number(random));
      text[text.find('=')] = '\n';
      return text;
    }
    default:
      return flags[random() % std::size(flags)];
  }
}

std::string variable(std::mt19937& random) {
  const char* const names[] = {"PET_NNODES",           "PET_NPROC_PER_NODE",   "PET_NODE_RANK",
                               "PET_MASTER_PORT",      "SLURM_STEP_ID",        "SLURM_STEP_NUM_NODES",
                               "SLURM_NODEID",         "SLURM_JOB_ID",         "SLURM_STEP_NUM_TASKS",
                               "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                               "JOB_COMPLETION_INDEX"};
  const char* const hosts[] = {"gpu[001-003,7],login1", "a", "a[1-2]b[3-4]", "a[1-99999999]", "a[", "a[3-1]",
                               "a[1-2][1-300]"};
  if (random() % 4 == 0) return absl::StrCat("$SLURM_STEP_NODELIST=", hosts[random() % 7]);
  return absl::StrCat("$", names[random() % 13], "=", number(random));
}

TEST(LaunchOptionsFuzzer, SeededArgumentsAreRefusedOrKeepThePromises) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text;
    for (std::size_t variables = random() % 3 == 0 ? random() % 6 : 0; variables > 0; --variables) {
      absl::StrAppend(&text, variable(random), "\n");
    }
    for (std::size_t arguments = random() % 5; arguments > 0; --arguments) {
      absl::StrAppend(&text, argument(random), "\n");
    }
    if (random() % 8 != 0) absl::StrAppend(&text, random() % 4 == 0 ? "--\n" : "", "program\n--nnodes=3");
    if (random() % 4 == 0) fuzzing::mutate(text, random);
    fuzzing::run(text);
  }
}

}  // namespace
}  // namespace gradwire::tools
