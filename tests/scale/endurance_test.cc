// Two processes make many calls and many references to each other's objects. Their memory, descriptors and
// threads must not grow, and their tables must become empty.
//
// By default: 300,000 calls and 30,000 references; under a sanitizer a sixth of that. To change it (on
// one line):
//   bazel test //tests/scale:endurance_test --test_arg=--calls=10000000 --test_arg=--references=1000000
//       --test_timeout=3600 --test_output=all
// --transport=NAME uses only this transport, instead of all.

#include <gtest/gtest.h>
#include <signal.h>

#include <deque>
#include <iostream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/census.h"
#include "gradwire/tests/chaos/sanitized.h"
#include "gradwire/tests/chaos/worker_process.h"
#include "gradwire/tests/scale/scale_services.h"

namespace scale {
namespace {

using gradwire::Future;
using gradwire::rpc::Agent;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::RRef;

int64_t calls = chaos::kSanitized ? 20000 : 300000;
int64_t references = chaos::kSanitized ? 2000 : 30000;
std::string transport = "all";

// The resources that both processes hold, each at its rank.
struct Holdings {
  int64_t bytes[2] = {};
  int64_t descriptors[2] = {};
  int64_t threads[2] = {};
};

class Pair {
 public:
  Pair()
      : store_(std::make_shared<gradwire::store::TcpStore>(
            "127.0.0.1", 0, gradwire::store::TcpStoreOptions{.world_size = std::nullopt, .is_master = true})),
        other_(
            {"tests/scale/scale_worker", absl::StrCat(store_->port()), "pair", "1", "2", "1024", transport},
            absl::StrCat(::testing::TempDir(), "/other.log")) {
    gradwire::rpc::RpcBackendOptions options;
    options.store = std::make_shared<gradwire::store::PrefixStore>("pair", store_);
    if (transport != "all") options.transports = {transport};
    options.num_worker_threads = 4;
    agent_ = Agent::start("worker0", 0, 2, options);
    other_.send_line("call");
  }
  ~Pair() {
    other_.send_line("end");
    agent_->shutdown(/*graceful=*/true, absl::Seconds(30));
    EXPECT_EQ(other_.wait(absl::Seconds(60)), 0);
  }

  const std::shared_ptr<Agent>& agent() const { return agent_; }

  // Waits until no call is in progress and the tables are empty, and returns what both processes hold then.
  Holdings quiet_holdings() const {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (true) {
      const std::vector<int64_t> remote = agent_->rpc_sync<&holdings>("worker1");
      const gradwire::rpc::AgentTables local = agent_->tables();
      if (remote[3] == 0 && local.pending_calls + local.served_calls + local.owned_rrefs + local.held_forks +
                                    local.unconfirmed_children ==
                                0) {
        const chaos::Census census = chaos::take_census();
        return {{chaos::resident_bytes(), remote[0]},
                {census.descriptors, remote[1]},
                {census.threads, remote[2]}};
      }
      if (absl::Now() > end) {
        ADD_FAILURE() << "the tables do not become empty: worker1 has " << remote[3]
                      << " entries, worker0 has " << local.pending_calls << " pending calls, "
                      << local.served_calls << " served calls, " << local.owned_rrefs << " owned RRefs, "
                      << local.held_forks << " held forks, " << local.unconfirmed_children
                      << " unconfirmed children";
        return {};
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  std::shared_ptr<gradwire::store::TcpStore> store_;
  chaos::WorkerProcess other_;
  std::shared_ptr<Agent> agent_;
};

// Runs `work` for a fifth of `count`, then for the rest. Checks that the processes hold about the same after
// both parts.
template <class F>
void expect_flat(const std::string& what, int64_t count, F work) {
  Pair pair;
  AgentGuard guard(pair.agent());
  const absl::Time start = absl::Now();
  work(*pair.agent(), count / 5);
  const Holdings before = pair.quiet_holdings();
  work(*pair.agent(), count - count / 5);
  const absl::Duration took = absl::Now() - start;
  const Holdings after = pair.quiet_holdings();
  for (int i : {0, 1}) {
    const int64_t growth = after.bytes[i] - before.bytes[i];
    std::cout << count << " " << what << " in " << took << ": worker" << i << " has "
              << before.bytes[i] / 1024 << " KiB after a fifth, " << growth / 1024 << " KiB more at the end; "
              << after.descriptors[i] << " descriptors, " << after.threads[i] << " threads\n";
    // Stacks and arenas of threads may be allocated late, mainly on a busy machine. The limit is low enough
    // to show a leak of 18 bytes for each call, or of 180 bytes for each reference.
    if (!chaos::kSanitized) {
      EXPECT_LE(growth, int64_t{4} << 20) << what;
    }
    EXPECT_LE(after.descriptors[i], before.descriptors[i] + (chaos::kMayHaveSymbolizer ? 2 : 0)) << what;
    // The pool grows while the machine is busy with something else, up to its limit.
    EXPECT_LE(after.threads[i], before.threads[i] + 8) << what;
  }
}

TEST(Endurance, CallsLeaveNothingBehind) {
  expect_flat("calls", calls, [](Agent& agent, int64_t count) {
    std::deque<Future<int64_t>> in_flight;
    for (int64_t i = 0; i < count; ++i) {
      if (i % 8 == 0) {
        ASSERT_EQ(agent.rpc_sync<&add>("worker1", i, i), 2 * i);
      } else {
        in_flight.push_back(agent.rpc_async<&add>("worker1", i, int64_t{1}));
        if (in_flight.size() > 64) {
          (void)in_flight.front().wait();
          in_flight.pop_front();
        }
      }
    }
    for (const Future<int64_t>& call : in_flight) (void)call.wait();
  });
}

TEST(Endurance, ReferencesLeaveNothingBehind) {
  expect_flat("references", references, [](Agent& agent, int64_t count) {
    std::deque<RRef<Item>> kept;
    std::deque<Future<int64_t>> reads;
    for (int64_t i = 0; i < count; ++i) {
      switch (i % 4) {
        case 0: {  // Created on worker1, and fetched.
          const RRef<Item> item = agent.remote<Item>("worker1", i);
          if (i % 16 == 0) ASSERT_EQ(item.to_here().number(), i);
          reads.push_back(item.to_here_async().then([](const Item& item) { return item.number(); }));
          break;
        }
        case 1:  // Created on worker1, and held for a while.
          kept.push_back(agent.remote<Item>("worker1", i));
          break;
        case 2:  // Created on worker0, and read by worker1.
          reads.push_back(agent.rpc_async<&read>("worker1", RRef<Item>(Item(i))));
          break;
        default:  // Created by worker1, sent to worker0, and held for a while.
          kept.push_back(agent.rpc_sync<&offer>("worker1", i));
      }
      if (reads.size() > 32) {
        ASSERT_EQ(reads.front().wait() % 2, 0);
        reads.pop_front();
      }
      if (kept.size() > 100) {
        if (i % 8 == 1) ASSERT_EQ(kept.front().rpc_sync<&Item::number>() % 2, 1);
        kept.pop_front();
      }
    }
    for (const Future<int64_t>& read : reads) (void)read.wait();
  });
}

}  // namespace
}  // namespace scale

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    bool good = true;
    if (absl::ConsumePrefix(&argument, "--calls=")) {
      good = absl::SimpleAtoi(argument, &scale::calls);
    } else if (absl::ConsumePrefix(&argument, "--references=")) {
      good = absl::SimpleAtoi(argument, &scale::references);
    } else if (absl::ConsumePrefix(&argument, "--transport=")) {
      scale::transport = std::string(argument);
    } else {
      good = false;
    }
    if (!good) {
      std::cerr << "unknown option or invalid value: got " << argv[i]
                << ", expected --calls=N, --references=N or --transport=NAME\n";
      return 2;
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  return RUN_ALL_TESTS();
}
