// Tests a process group and an rpc agent in one job. Both use one address to find the other processes. Either
// may begin first, and either may end first.
#include <ATen/ops/full.h>

#include <cstdio>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/store/file_store.h"
#include "gradwire/tests/collectives/inputs.h"
#include "gradwire/tests/collectives/rank_processes.h"
#include "gradwire/tests/collectives/rendezvous_points.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

constexpr int kSize = 2;

int64_t twice(int64_t number) { return 2 * number; }
GRADWIRE_RPC(twice)

// The group and the agent of one process.
class Job {
 public:
  Job(std::string method, std::shared_ptr<store::Store> store, int rank)
      : method_(std::move(method)), store_(std::move(store)), rank_(rank) {}

  void join_group() {
    group_ = ProcessGroup::create({.init_method = method_,
                                   .timeout = absl::Minutes(1),
                                   .world_size = kSize,
                                   .rank = rank_,
                                   .store = store_});
  }
  void start_agent() {
    rpc::RpcBackendOptions options;
    options.init_method = method_;
    options.store = store_;
    options.join_timeout = absl::Minutes(1);
    agent_ = rpc::Agent::start(absl::StrCat("worker", rank_), rank_, kSize, options);
  }
  void use_group() {
    const at::Tensor tensor = at::full({1000}, rank_ + 1, at::kLong);
    group_->all_reduce(tensor);
    expect_equal(tensor, at::full({1000}, 3, at::kLong), "all_reduce");
  }
  void use_agent() {
    const int64_t answer = agent_->rpc_sync<&twice>(absl::StrCat("worker", 1 - rank_), 21);
    expect(answer == 42, "the call");
  }
  // The metrics of the agent have those of the group, which belongs to the same process.
  void read_metrics() const {
    const std::string text = agent_->metrics_text();
    const std::string labels =
        absl::StrCat("{worker=\"worker", rank_, "\",group=\"", group_->name(), "\",operation=\"all_reduce\"");
    for (const std::string& line :
         {absl::StrCat("gradwire_collective_operations_total", labels, ",result=\"ok\"} 1\n"),
          absl::StrCat("gradwire_collective_bytes_total", labels, "} 8000\n"),
          absl::StrCat("gradwire_collective_seconds_count", labels, "} 1\n")}) {
      expect(absl::StrContains(text, line), absl::StrCat(line, " in the metrics"));
    }
  }
  void leave_group() {
    group_->barrier();
    group_->destroy();
    group_ = nullptr;
  }
  void stop_agent() {
    agent_->shutdown();
    agent_ = nullptr;
  }

 private:
  const std::string method_;
  const std::shared_ptr<store::Store> store_;
  const int rank_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<rpc::Agent> agent_;
};

enum class Rendezvous { kEnv, kTcp, kFile, kStore };

// The parameters: how the processes find one another, whether the group begins first, and whether it ends
// first.
class WithRpc : public ::testing::TestWithParam<std::tuple<Rendezvous, bool, bool>> {};

TEST_P(WithRpc, BothUseOneAddress) {
  const auto [rendezvous, group_begins, group_ends] = GetParam();
  const int port = free_port();
  const std::string file = file_method();
  const RankProcesses ranks(kSize, [&, rendezvous = rendezvous, group_begins = group_begins,
                                    group_ends = group_ends](int rank, std::FILE* out) {
    std::string method = file;
    std::shared_ptr<store::Store> store;
    if (rendezvous == Rendezvous::kEnv) {
      set_environment(port, rank, kSize);
      method = "env://";
    } else if (rendezvous == Rendezvous::kTcp) {
      method = absl::StrCat("tcp://127.0.0.1:", port);
    } else if (rendezvous == Rendezvous::kStore) {
      store = std::make_shared<store::FileStore>(file.substr(std::string("file://").size()));
    }
    Job job(method, store, rank);
    group_begins ? job.join_group() : job.start_agent();
    group_begins ? job.start_agent() : job.join_group();
    job.use_group();
    job.use_agent();
    job.read_metrics();
    group_ends ? job.leave_group() : job.stop_agent();
    group_ends ? job.use_agent() : job.use_group();
    group_ends ? job.stop_agent() : job.leave_group();
    std::fprintf(out, "done\n");
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.line(rank), "done\n") << "rank " << rank;
}

std::string name_of_job(const ::testing::TestParamInfo<WithRpc::ParamType>& info) {
  constexpr const char* kNames[] = {"Env", "Tcp", "File", "Store"};
  const auto [rendezvous, group_begins, group_ends] = info.param;
  return absl::StrCat(kNames[static_cast<int>(rendezvous)], group_begins ? "GroupBegins" : "AgentBegins",
                      group_ends ? "GroupEnds" : "AgentEnds");
}

INSTANTIATE_TEST_SUITE_P(Jobs, WithRpc,
                         ::testing::Combine(::testing::Values(Rendezvous::kEnv, Rendezvous::kTcp,
                                                              Rendezvous::kFile, Rendezvous::kStore),
                                            ::testing::Bool(), ::testing::Bool()),
                         &name_of_job);

}  // namespace
}  // namespace gradwire::collectives
