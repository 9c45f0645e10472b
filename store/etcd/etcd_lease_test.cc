// Tests of an EtcdStore whose keys have a lease.

#include "gradwire/store/etcd/etcd_lease.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "absl/strings/match.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/etcd/etcd_client.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/store/etcd_store.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kKeyTimeout = absl::Seconds(60);

std::shared_ptr<EtcdStore> connect(const EtcdProcess& etcd, absl::Duration lease_ttl = absl::ZeroDuration()) {
  return std::make_shared<EtcdStore>(std::vector<std::string>{etcd.endpoint()}, "job",
                                     EtcdStoreOptions{.timeout = kKeyTimeout, .lease_ttl = lease_ttl});
}

// Counting by prefix works, because no key of these tests is a prefix of another.
bool gone(EtcdStore& store, const std::string& key) {
  return *store.try_num_keys_under(key, kKeyTimeout) == 0;
}

void await_gone(EtcdStore& store, const std::string& key) {
  const absl::Time deadline = absl::Now() + kKeyTimeout;
  while (!gone(store, key) && absl::Now() < deadline) ::usleep(20'000);
}

TEST(EtcdLease, KeysOfAKilledProcessGo) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const auto store = connect(etcd);
  const std::string endpoint = etcd.endpoint();
  const pid_t child = ::fork();
  if (child == 0) {
    const char* const program = "store/etcd/etcd_lease_process";
    ::execl(program, program, endpoint.c_str(), nullptr);
    ::_exit(127);
  }
  EXPECT_EQ(store->get("alive"), "yes");
  store->set("mine", "");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const absl::Time start = absl::Now();
  await_gone(*store, "alive");
  EXPECT_TRUE(gone(*store, "alive"));
  EXPECT_TRUE(gone(*store, "counter"));
  EXPECT_FALSE(gone(*store, "mine"));
  EXPECT_LT(absl::Now() - start, kKeyTimeout / 2);  // The lease's 2 s, and the time that etcd takes.
}

// Expects that the lease of a store that lives does not end, also if etcd restarts meanwhile.
void expect_lease_kept(bool restart) {
  EtcdProcess etcd;
  // Long enough that a pause of the machine of some seconds does not end the lease.
  constexpr absl::Duration kLease = absl::Seconds(8);
  const auto other = connect(etcd);
  const auto store = connect(etcd, kLease);
  store->set("key", "value");
  if (restart) {
    etcd.kill();
    etcd.start();
  }
  // Long enough for the lease to expire.
  EXPECT_TRUE(absl::IsDeadlineExceeded(other->try_wait({"never"}, kLease + absl::Seconds(3))));
  EXPECT_FALSE(gone(*other, "key"));
}

TEST(EtcdLease, IsKeptAliveWhileTheStoreLives) {
  GRADWIRE_NEED_ETCD();
  expect_lease_kept(/*restart=*/false);
}

TEST(EtcdLease, IsKeptAliveOverARestartOfEtcd) {
  GRADWIRE_NEED_ETCD();
  expect_lease_kept(/*restart=*/true);
}

TEST(EtcdLease, NewOneIsTakenWhenEtcdHasLostIt) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const auto store = connect(etcd, absl::Seconds(30));
  store->set("key", "old");
  EXPECT_EQ(store->add("counter", 5), 5);
  etcd.kill();
  etcd.delete_data();
  etcd.start();
  // If the store has not noticed yet that the connection broke, it cannot know whether this change was made.
  const absl::Status first = store->try_set("key", "new");
  EXPECT_TRUE(first.ok() || absl::IsUnavailable(first)) << first;
  store->set("key", "new");
  EXPECT_EQ(store->get("key"), "new");
  EXPECT_EQ(store->add("counter", 1), 1);
}

TEST(EtcdLease, ClosingEndsSoonWhenEtcdIsGone) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  auto store = connect(etcd, absl::Seconds(30));
  store->set("key", "");
  etcd.stop();
  const absl::Time start = absl::Now();
  store.reset();
  EXPECT_LT(absl::Now() - start, kKeyTimeout / 2);
  etcd.resume();
}

TEST(EtcdLease, DeadlineIsKeptWhileAnotherCallAsksForTheLease) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  Clock& clock = Clock::system();
  EtcdClient client({.members = value_or_throw(open_etcd_members({etcd.endpoint()}, {})), .name = "store"},
                    clock);
  // Connect before etcd hangs.
  EtcdLease other(client, absl::Seconds(30), "other", clock);
  ASSERT_TRUE(other.id(clock.now() + kKeyTimeout).ok());
  EtcdLease lease(client, absl::Seconds(30), "EtcdStore \"job\"", clock);
  etcd.stop();
  absl::StatusOr<int64_t> slow_result;
  std::thread asking([&] { slow_result = lease.id(clock.now() + 2 * kKeyTimeout); });
  // Repeat until the call with the long deadline is the one that requests the lease.
  const absl::Time start = clock.now();
  absl::Status waited;
  do {
    waited = lease.id(clock.now() + absl::Milliseconds(100)).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(waited) || absl::IsUnavailable(waited)) << waited;
  } while (!absl::StrContains(waited.message(), "another call") && clock.now() - start < kKeyTimeout);
  EXPECT_LT(clock.now() - start, kKeyTimeout);
  EXPECT_TRUE(absl::StrContains(waited.message(), "the EtcdStore \"job\" got no lease")) << waited;
  etcd.resume();
  asking.join();
  ASSERT_TRUE(slow_result.ok()) << slow_result.status();
  EXPECT_EQ(*lease.id(clock.now() + kKeyTimeout), *slow_result);
}

// A clock that throws at each second question.
class ThrowingClock : public Clock {
 public:
  absl::Time now() const override {
    if (++questions_ % 2 == 0) throw std::bad_alloc();
    return Clock::system().now();
  }
  void wait_until(Mutex&, CondVar&, absl::Time) override {}

 private:
  mutable std::atomic<int> questions_{0};
};

TEST(EtcdLease, IsRequestedAgainAfterAnException) {
  ThrowingClock throwing;
  EtcdClient client({.members = value_or_throw(open_etcd_members({"127.0.0.1:1"}, {})), .name = "store"},
                    throwing);
  EtcdLease lease(client, absl::Seconds(30), "EtcdStore \"job\"", Clock::system());
  EXPECT_THROW((void)lease.id(absl::InfinitePast()), std::bad_alloc);
  // It does not wait for a call that has ended.
  EXPECT_THROW((void)lease.id(absl::InfinitePast()), std::bad_alloc);
}

}  // namespace
}  // namespace gradwire::store
