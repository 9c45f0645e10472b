// Tests of errors on one of several nodes or in the store, and of signals to launchers that depend on others.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::tests {
namespace {

class LaunchTrouble : public ::testing::Test {
 protected:
  std::unique_ptr<LaunchProcess> node(std::vector<std::string> options, const std::string& script = kWorks) {
    options.insert(options.begin(),
                   {absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_), "--rdzv_conf=last_call_timeout=0.2"});
    return std::make_unique<LaunchProcess>(with_script(std::move(options), script));
  }
  static void expect_end(LaunchProcess& launch, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(launch.events_to_the_end(), "");
    EXPECT_EQ(launch.wait(), code) << launch.err();
    for (const std::string& part : parts) {
      EXPECT_TRUE(absl::StrContains(launch.err(), part)) << launch.err() << "\n  lacks " << part;
    }
  }
  // Waits until `nodes` launchers are in the job's record.
  void wait_for_nodes(int nodes) {
    store::TcpStore store("127.0.0.1", port_, {.timeout = kTimeout, .wait_for_workers = false});
    std::string record = store.get("rendezvous/state");
    while (joined(record) < static_cast<std::size_t>(nodes)) {
      absl::StatusOr<std::string> next = store.try_watch("rendezvous/state", record, kTimeout);
      ASSERT_TRUE(next.ok()) << next.status();
      record = *next;
    }
  }

  static constexpr absl::Duration kTimeout = absl::Seconds(100);
  static constexpr char kWorks[] = "echo ready >&9; exec sleep 1000";
  const int port_ = free_port();

 private:
  // The first beat of a node is in the store before the node is in the record, so keys do not count nodes.
  static std::size_t joined(const std::string& bytes) {
    const absl::StatusOr<rendezvous::Record> record = rendezvous::decode(bytes);
    return record.ok() ? record->participants.size() + record->waiting.size() : 0;
  }
};

TEST_F(LaunchTrouble, ProgramMissingOnOneNodeIsReportedOnAll) {
  auto good = node({"--nnodes=2"});
  LaunchProcess bad({"--nnodes=2", absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_), "/no/such/program"});
  expect_end(bad, 1, {"program not found: /no/such/program"});
  good->events_to_the_end();
  EXPECT_EQ(good->wait(), 1);
  EXPECT_TRUE(absl::StrContains(good->err(), "program not found: /no/such/program")) << good->err();
}

TEST_F(LaunchTrouble, ProgramThatCannotBeExecutedOnOneNodeIsReportedOnAll) {
  const std::string program = absl::StrCat(::testing::TempDir(), "/no_first_line");
  std::ofstream(program) << "no first line\n";
  chmod(program.c_str(), 0700);
  auto good = node({"--nnodes=2"});
  LaunchProcess bad({"--nnodes=2", absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_), program});
  expect_end(bad, 1, {"cannot execute " + program});
  good->events_to_the_end();
  EXPECT_EQ(good->wait(), 1);
  EXPECT_TRUE(absl::StrContains(good->err(), "cannot execute " + program)) << good->err();
}

TEST_F(LaunchTrouble, LogsThatCannotBeWrittenOnOneNodeAreReportedOnAll) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/no_directory");
  std::ofstream(file) << "x";
  auto good = node({"--nnodes=2"});
  auto bad = node({"--nnodes=2", "--redirects=3", "--log_dir=" + file});
  expect_end(*bad, 1, {file});
  good->events_to_the_end();
  EXPECT_EQ(good->wait(), 1);
  EXPECT_TRUE(absl::StrContains(good->err(), file)) << good->err();
}

TEST_F(LaunchTrouble, NodeOfAnotherJobIsRefused) {
  auto first = node({"--nnodes=1:2", "--rdzv_id=a"});
  first->events(1);
  auto stranger = node({"--nnodes=1:2", "--rdzv_id=b"});
  expect_end(*stranger, 2,
             {"was started for the job b, but the store is used by the job a", absl::StrCat(port_)});
  first->send(SIGTERM);
  expect_end(*first, 128 + SIGTERM, {});
}

TEST_F(LaunchTrouble, MalformedRecordIsOneLine) {
  auto first = node({"--nnodes=2", "--redirects=3", absl::StrCat("--log_dir=", ::testing::TempDir())});
  wait_for_nodes(1);
  store::TcpStore("127.0.0.1", port_, {.wait_for_workers = false}).set("rendezvous/state", "garbage");
  expect_end(*first, 2, {"rendezvous/state", absl::StrCat(port_)});
  EXPECT_EQ(first->complaints().size(), 1u) << first->err();
}

TEST_F(LaunchTrouble, MalformedRecordEndsWorkersToo) {
  auto first = node({"--nnodes=1:2"});
  first->events(1);
  store::TcpStore("127.0.0.1", port_, {.wait_for_workers = false}).set("rendezvous/state", "garbage");
  expect_end(*first, 2, {"rendezvous/state", absl::StrCat(port_)});
}

// A program that uses a port.
class Listener {
 public:
  explicit Listener(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 100), 0);
  }
  ~Listener() { close(fd_); }

 private:
  const int fd_;
};

TEST_F(LaunchTrouble, PortInUseOnNodeZeroIsOneLine) {
  Listener taken(port_);
  LaunchProcess first({"--nnodes=2", "--node_rank=0", absl::StrCat("--master_port=", port_), "true"});
  expect_end(first, 1, {absl::StrCat("cannot serve the store at 127.0.0.1:", port_)});
  EXPECT_EQ(lines(first.err()).size(), 1u) << first.err();
}

TEST_F(LaunchTrouble, PortOfAnotherProgramIsNamedAfterTheJoinTimeout) {
  Listener taken(port_);
  auto first = node({"--nnodes=2", "--join_timeout=0.5"});
  expect_end(*first, 1, {"cannot reach the job's store", absl::StrCat(port_)});
}

TEST_F(LaunchTrouble, UnknownHostIsRetriedAndNamed) {
  LaunchProcess launch(
      {"--nnodes=2", "--rdzv_endpoint=nobody.invalid:29400", "--insecure", "--join_timeout=0.5", "true"});
  expect_end(launch, 1, {"cannot look up the host \"nobody.invalid\""});
  LaunchProcess stopped({"--nnodes=2", "--rdzv_endpoint=nobody.invalid:29400", "--insecure", "true"});
  stopped.send(SIGTERM);
  const int code = stopped.wait();
  EXPECT_TRUE(code == 128 + SIGTERM || code == -SIGTERM) << code << stopped.err();
}

TEST_F(LaunchTrouble, SecondInterruptKills) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"},
                                   "trap '' INT TERM; echo ready >&9; while :; do sleep 1; done"));
  launch.events(2);
  launch.send(SIGINT);
  // Signals within a second count as one.
  siginfo_t info{};
  while (waitid(P_PID, launch.pid(), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == 0) {
    poll(nullptr, 0, 100);
    launch.send(SIGINT);
  }
  expect_end(launch, 128 + SIGINT, {"received SIGINT once more: killing the workers"});
}

TEST_F(LaunchTrouble, SignalWhileNodesJoinEndsThemAll) {
  auto first = node({"--nnodes=3"});
  auto second = node({"--nnodes=3"});
  wait_for_nodes(2);
  first->send(SIGTERM);
  expect_end(*first, 128 + SIGTERM, {});
  expect_end(*second, 1, {"was stopped by SIGTERM"});
}

TEST_F(LaunchTrouble, ElasticJobEndsWithTheHostOfItsStore) {
  auto first = node({"--nnodes=1:2", "--max_restarts=1"});
  first->events(1);
  auto second = node({"--nnodes=1:2", "--max_restarts=1"});
  second->events(1);
  first->send(SIGTERM);
  first->events_to_the_end();
  EXPECT_EQ(first->wait(), 128 + SIGTERM) << first->err();
  expect_end(*second, 1, {"which serves the job's store, was stopped by SIGTERM"});
}

}  // namespace
}  // namespace gradwire::tests
