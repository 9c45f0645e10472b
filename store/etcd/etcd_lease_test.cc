// Keys of an EtcdStore that hang on a lease.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "gtest/gtest.h"
#include "store/etcd/etcd_process.h"
#include "store/etcd_store.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::shared_ptr<EtcdStore> connect(const EtcdProcess& etcd, absl::Duration lease_ttl = absl::ZeroDuration()) {
  return std::make_shared<EtcdStore>(std::vector<std::string>{etcd.endpoint()}, "job",
                                     EtcdStoreOptions{.timeout = kPatience, .lease_ttl = lease_ttl});
}

bool gone(EtcdStore& store, const std::string& key) { return !store.try_get(key, absl::ZeroDuration()).ok(); }

void await_gone(EtcdStore& store, const std::string& key) {
  const absl::Time deadline = absl::Now() + kPatience;
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
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));  // The lease's 2 s, and etcd's own pace.
}

TEST(EtcdLease, IsKeptAliveWhileTheStoreLives) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const auto other = connect(etcd);
  const auto store = connect(etcd, absl::Seconds(2));
  store->set("key", "value");
  // Long enough for it to run out twice.
  EXPECT_TRUE(absl::IsDeadlineExceeded(other->try_wait({"never"}, absl::Seconds(6))));
  EXPECT_FALSE(gone(*other, "key"));
  // A restart of etcd does not end it.
  etcd.kill();
  etcd.start();
  EXPECT_TRUE(absl::IsDeadlineExceeded(other->try_wait({"never"}, absl::Seconds(6))));
  EXPECT_FALSE(gone(*other, "key"));
}

TEST(EtcdLease, NewOneIsTakenWhenEtcdHasLostIt) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const auto store = connect(etcd, absl::Seconds(30));
  store->set("key", "old");
  EXPECT_EQ(store->add("counter", 5), 5);
  etcd.kill();
  etcd.forget();
  etcd.start();
  // If the store has not noticed yet that the connection broke, it cannot know what has become of this.
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
  EXPECT_LT(absl::Now() - start, absl::Seconds(6));
  etcd.carry_on();
}

}  // namespace
}  // namespace gradwire::store
