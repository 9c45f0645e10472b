#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/tcp/socket/address.h"

// A worker whose host is known by a name that takes long to look up. Others serve calls meanwhile.
namespace gradwire::rpc {
namespace {

struct Kept {
  explicit Kept(int64_t start) : value(start) {}
  int64_t get() const { return value; }
  const int64_t value;
};
GRADWIRE_RPC_CLASS(Kept, int64_t)
GRADWIRE_RPC_METHOD(Kept, get)

int64_t doubled(int64_t x) { return 2 * x; }
GRADWIRE_RPC(doubled)
int64_t read_kept(const RRef<Kept>& kept) { return kept.rpc_sync<&Kept::get>(); }
GRADWIRE_RPC(read_kept)

// The answers of an agent's name service.
struct NameService {
  // The first lookups fail, when the test says so.
  std::atomic<int> failures{0};
  std::promise<void> fail;
  std::shared_future<void> failed = fail.get_future().share();
  std::atomic<bool> waiting{false};
  std::promise<void> answer;
  std::shared_future<void> answered = answer.get_future().share();
};

class SlowName : public ::testing::Test {
 protected:
  SlowName() {
    // Only the first worker is known by a name. No other thread exists yet.
    ::setenv("GRADWIRE_HOST_ADDRESS", "owner.example", 1);
    owner_ = start("owner", nullptr);
    ::unsetenv("GRADWIRE_HOST_ADDRESS");
    caller_ = start("caller", nullptr);
    slow_ = start("slow", names_);
    for (const auto& agent : {owner_, caller_, slow_}) {
      for (const char* name : {"owner", "caller", "slow"}) agent->wait_for_worker(name, absl::Seconds(60));
    }
  }
  ~SlowName() override {
    for (const auto& agent : {owner_, caller_, slow_}) agent->shutdown(/*graceful=*/false);
  }

  std::shared_ptr<Agent> start(const std::string& name, std::shared_ptr<NameService> names) {
    RpcBackendOptions options;
    options.store = store_;
    options.transports = {"tcp"};
    options.security.insecure = true;
    options.connect_timeout = absl::Seconds(60);
    AgentHooks hooks;
    hooks.look_up_host =
        [names](const std::string&) -> absl::StatusOr<std::vector<transport::SocketAddress>> {
      EXPECT_FALSE(on_duty());
      if (names != nullptr) {
        if (names->failures.fetch_sub(1) > 0) {
          names->failed.wait();
          return absl::UnavailableError("cannot look up the host");
        }
        names->waiting = true;
        names->answered.wait();
      }
      return transport::resolve_addresses("127.0.0.1:1");
    };
    options.hooks = std::make_shared<const AgentHooks>(std::move(hooks));
    return Agent::start(name, -1, 0, options);
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  const std::shared_ptr<NameService> names_ = std::make_shared<NameService>();
  std::shared_ptr<Agent> owner_, caller_, slow_;
};

// The thread that reads the messages of the worker receives the reference, and reports it to the owner.
TEST_F(SlowName, OfTheOwnerOfAReferenceDelaysNoOtherCall) {
  const RRef<Kept> kept = caller_->remote<Kept>("owner", int64_t{3});
  const Future<int64_t> read = caller_->rpc_async<&read_kept>("slow", kept);
  ASSERT_TRUE(eventually([&] { return names_->waiting.load(); }));
  EXPECT_EQ(caller_->rpc_sync<&doubled>("slow", int64_t{1}), 2);
  EXPECT_FALSE(read.done());
  names_->answer.set_value();
  EXPECT_EQ(read.wait(), 3);
}

// The end of the first connection is handled by the thread that reads the messages. The creation has failed,
// and this thread reports that to the owner, over another connection.
TEST_F(SlowName, OfTheOwnerOfAFailedCreationDelaysNoOtherCall) {
  names_->failures = 1;
  const RRef<Kept> kept = slow_->remote<Kept>("owner", int64_t{3});
  // The request waits in the connection.
  names_->fail.set_value();
  ASSERT_TRUE(eventually([&] { return names_->waiting.load(); }));
  EXPECT_EQ(caller_->rpc_sync<&doubled>("slow", int64_t{1}), 2);
  names_->answer.set_value();
  const absl::Status created = status_of([&] { (void)kept.rpc_sync<&Kept::get>(); });
  EXPECT_TRUE(absl::StrContains(created.message(), "connecting to worker \"owner\"")) << created;
  EXPECT_TRUE(absl::StrContains(created.message(), "cannot look up the host")) << created;
  EXPECT_EQ(slow_->rpc_sync<&doubled>("owner", int64_t{4}), 8);
}

TEST_F(SlowName, CallerIsNotBlockedAndItsDeadlineCounts) {
  const Future<int64_t> call =
      slow_->rpc_async<&doubled>(Destination("owner").with_timeout(absl::Milliseconds(50)), int64_t{1});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status_of([&] { call.wait(); })));
  names_->answer.set_value();
}

}  // namespace
}  // namespace gradwire::rpc
