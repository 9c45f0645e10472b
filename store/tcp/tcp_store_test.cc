#include "gradwire/store/tcp_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<TcpStoreServer> start_server(int port = 0) {
  return value_or_throw(TcpStoreServer::start({.host = "localhost", .port = port}));
}

absl::Status open_status(int port, TcpStoreOptions options) {
  return TcpStore::open("localhost", port, options).status();
}

TEST(TcpStore, TakenPortIsNamed) {
  TcpStore master("localhost", 0, {.is_master = true});
  ASSERT_GT(master.port(), 0);
  const absl::Status status = open_status(master.port(), {.is_master = true});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(master.port())));
  EXPECT_THROW(TcpStore("0.0.0.0", master.port(), {.is_master = true}), Error);
}

TEST(TcpStore, UnreachableMasterIsUnavailableWithinTheTimeout) {
  const int port = free_port();
  const absl::Time start = absl::Now();
  const absl::Status status = open_status(port, {.timeout = absl::Milliseconds(300)});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", port)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));  // Much less than the default of 300 s.
}

TEST(TcpStore, ImpossibleArgumentsAreInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(open_status(0, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(open_status(70000, {.is_master = true})));
  EXPECT_TRUE(absl::IsInvalidArgument(open_status(0, {.world_size = 0, .is_master = true})));
  EXPECT_TRUE(absl::IsInvalidArgument(TcpStore::open("no host/", 0, {.is_master = true}).status()));
}

TEST(TcpStore, MasterWaitsForAllWorkers) {
  const int port = free_port();
  absl::Status master_status, worker_status;
  std::thread master([&] {
    absl::StatusOr<std::shared_ptr<TcpStore>> store =
        TcpStore::open("localhost", port, {.world_size = 2, .is_master = true, .timeout = absl::Seconds(60)});
    master_status = store.status();
    // Keeps the table until the worker has used it.
    if (store.ok()) (*store)->wait({"used"});
  });
  std::thread worker([&] {
    absl::StatusOr<std::shared_ptr<TcpStore>> store =
        TcpStore::open("localhost", port, {.world_size = 2, .timeout = absl::Seconds(60)});
    worker_status = store.ok() ? (*store)->try_set("used", "") : store.status();
  });
  master.join();
  worker.join();
  EXPECT_TRUE(master_status.ok()) << master_status;
  EXPECT_TRUE(worker_status.ok() || absl::IsUnavailable(worker_status)) << worker_status;
}

TEST(TcpStore, MissingWorkersAreCounted) {
  const absl::Status status =
      open_status(0, {.world_size = 3, .is_master = true, .timeout = absl::Milliseconds(100)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 workers, this one included: 1 connected"));
}

TEST(TcpStore, WorldSizesThatDifferAreBothNamed) {
  TcpStore master("localhost", 0, {.world_size = 2, .is_master = true, .wait_for_workers = false});
  const absl::Status status = open_status(master.port(), {.world_size = 7});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("7"), HasSubstr("2")));
}

TEST(TcpStore, GarbageOnThePortHarmsNobody) {
  TcpStore master("127.0.0.1", 0, {.is_master = true});
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(master.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  std::string garbage;
  for (int i = 0; i < 100'000; ++i) garbage.push_back(static_cast<char>(i * 7919 >> 4));
  (void)send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  // The server closes the connection.
  char byte;
  while (recv(fd, &byte, 1, 0) > 0) {
  }
  close(fd);
  master.set("key", "value");
  EXPECT_EQ(TcpStore("127.0.0.1", master.port()).get("key"), "value");
}

TEST(TcpStore, ServerThatStopsEndsWaitsWithUnavailable) {
  std::unique_ptr<TcpStoreServer> server = start_server();
  const int port = server->port();
  TcpStore store("localhost", port);
  absl::Status status;
  std::thread waiter([&] { status = store.try_wait({"never"}); });
  while (server->num_waiters() == 0) std::this_thread::yield();
  server.reset();
  waiter.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", port)));
}

TEST(TcpStore, RestartedServerIsNotMistakenForTheOldOne) {
  const int port = free_port();
  std::unique_ptr<TcpStoreServer> server = start_server(port);
  TcpStore store("localhost", port);
  store.set("key", "value");
  server.reset();
  server = start_server(port);
  const absl::Status status = store.try_get("key", absl::Seconds(20)).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST(TcpStore, ClientThatGivesUpOrGoesFreesItsWaiter) {
  std::unique_ptr<TcpStoreServer> server = start_server();
  {
    TcpStore store("localhost", server->port());
    EXPECT_TRUE(absl::IsDeadlineExceeded(store.try_wait({"a", "b"}, absl::Milliseconds(20))));
    EXPECT_TRUE(absl::IsDeadlineExceeded(store.try_get("c", absl::Milliseconds(20)).status()));
  }
  EXPECT_EQ(server->num_waiters(), 0);
}

TEST(TcpStore, ListensOnEveryInterfaceUnlessTheHostIsLoopback) {
  TcpStore master("0.0.0.0", 0, {.is_master = true, .security = {.insecure = true}});
  master.set("key", "value");
  EXPECT_EQ(TcpStore("127.0.0.1", master.port()).get("key"), "value");
  EXPECT_EQ(TcpStore("localhost", master.port()).get("key"), "value");
}

TEST(TcpStore, UsesIpv6WhereAvailable) {
  absl::StatusOr<std::shared_ptr<TcpStore>> master = TcpStore::open("::1", 0, {.is_master = true});
  ASSERT_TRUE(master.ok() || absl::IsFailedPrecondition(master.status())) << master.status();
  GRADWIRE_NEEDS("ipv6", master.status());
  (*master)->set("key", "value");
  TcpStore store("::1", (*master)->port());
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_EQ(store.description(), absl::StrCat("TcpStore at [::1]:", store.port()));
}

TEST(TcpStoreServer, SecondShutdownDoesNothing) {
  std::unique_ptr<TcpStoreServer> server = start_server();
  server->shutdown();
  server->shutdown();
}

}  // namespace
}  // namespace gradwire::store
