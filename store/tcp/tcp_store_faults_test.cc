// Tests of a TcpStore whose server dies, or whose connections break.

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/store/tcp/cutting_proxy.h"
#include "gradwire/store/tcp/store_loop.h"
#include "gradwire/store/tcp/tcp_store_client.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

// A store_server_process that runs until this object is destroyed.
class ServerProcess {
 public:
  explicit ServerProcess(int port = 0) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    const std::string argument = absl::StrCat(port);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      const char* const program = "store/tcp/store_server_process";
      ::execl(program, program, argument.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = Descriptor(in[1]);
    stdout_ = Descriptor(out[0]);
    std::string line;
    char byte;
    while (::read(stdout_.get(), &byte, 1) == 1 && byte != '\n') line.push_back(byte);
    EXPECT_TRUE(absl::SimpleAtoi(line, &port_)) << line;
  }
  ~ServerProcess() { kill(); }

  int port() const { return port_; }
  // Returns when the process has stopped.
  void stop() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
  Descriptor stdin_, stdout_;
};

absl::Duration cpu_time() {
  timespec time;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Measures how long two waiting calls take to end when their server is killed.
absl::Duration time_to_notice_the_end() {
  ServerProcess server;
  TcpStore store("localhost", server.port());
  TcpStore other("localhost", server.port());
  absl::Status waited, got;
  std::thread waiter([&] {
    other.set("waiting", "");
    waited = store.try_wait({"never"});
  });
  std::thread getter([&] {
    other.set("getting", "");
    got = store.try_get("neither").status();
  });
  other.wait({"waiting", "getting"});
  const absl::Time start = absl::Now();
  server.kill();
  waiter.join();
  getter.join();
  const absl::Duration took = absl::Now() - start;
  for (const absl::Status& status : {waited, got}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", server.port())));
  }
  EXPECT_TRUE(absl::IsUnavailable(store.try_set("key", "value")));
  EXPECT_TRUE(absl::IsUnavailable(other.try_add("key", 1).status()));
  return took;
}

TEST(TcpStoreFaults, KilledServerEndsWaitsSoonNamingTheAddress) {
  // Takes 400 ms on an idle machine. A loaded machine takes longer, but not each time. If the client did not
  // notice that the server has ended, it would take 5 s each time.
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < 3; ++i) fastest = std::min(fastest, time_to_notice_the_end());
  EXPECT_LT(fastest, absl::Seconds(3));
}

TEST(TcpStoreFaults, ServerAtTheSameAddressIsNotMistakenForTheOldOne) {
  const int port = free_port();
  auto server = std::make_unique<ServerProcess>(port);
  TcpStore store("localhost", port);
  store.set("key", "value");
  server->kill();
  server = std::make_unique<ServerProcess>(port);
  EXPECT_TRUE(absl::IsAborted(store.try_get("key").status()));
  EXPECT_TRUE(absl::IsAborted(store.try_add("counter", 1).status()));
  EXPECT_TRUE(TcpStore("localhost", port).try_num_keys().ok());
}

TEST(TcpStoreFaults, CallToAHangingServerEndsAtTheDeadline) {
  ServerProcess server;
  TcpStore store("localhost", server.port());
  server.stop();
  const absl::Status status = store.try_set("key", "value", absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  server.resume();
  // The late answer of the call that timed out is dropped.
  EXPECT_EQ(store.add("counter", 1), 1);
  EXPECT_EQ(store.get("key"), "value");
}

TEST(TcpStoreFaults, ClientsMayComeBeforeTheServer) {
  const int port = free_port();
  std::string got;
  std::thread early([&] { got = TcpStore("localhost", port).get("key"); });
  TcpStore master("localhost", port, {.is_master = true});
  master.set("key", "value");
  early.join();
  EXPECT_EQ(got, "value");
}

class Cut : public ::testing::Test {
 protected:
  // Runs `call` on another thread. Cuts its connection after the server has set `key` to `value`, so that the
  // answer is lost.
  template <class F>
  void cut_after(const std::string& key, const std::string& value, F call) {
    proxy_.lose_answers();
    std::thread caller(call);
    while (direct_.get(key) != value) direct_.watch(key, direct_.get(key));
    proxy_.cut();
    caller.join();
  }

  const std::unique_ptr<TcpStoreServer> server_ =
      value_or_throw(TcpStoreServer::start({.host = "localhost"}));
  CuttingProxy proxy_{server_->port()};
  TcpStore direct_{"localhost", server_->port()};
  TcpStore store_{"localhost", proxy_.port()};
};

TEST_F(Cut, AddWhoseAnswerIsLostIsNotRepeated) {
  absl::Status status;
  cut_after("counter", "5", [&] { status = store_.try_add("counter", 5).status(); });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(direct_.get("counter"), "5");
  EXPECT_EQ(store_.add("counter", 1), 6);
}

TEST_F(Cut, CompareSetAndDeleteWhoseAnswersAreLostAreNotRepeated) {
  absl::Status status;
  cut_after("lock", "mine", [&] { status = store_.try_compare_set("lock", "", "mine").status(); });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(store_.compare_set("lock", "mine", "again"), "again");

  proxy_.lose_answers();
  std::thread caller([&] { status = store_.try_delete_key("lock").status(); });
  while (direct_.num_keys() > 0) std::this_thread::yield();
  direct_.set("lock", "another's");
  proxy_.cut();
  caller.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(direct_.get("lock"), "another's");
}

TEST_F(Cut, SetWhoseAnswerIsLostIsRepeated) {
  absl::Status status = absl::UnknownError("not run");
  cut_after("key", "value", [&] { status = store_.try_set("key", "value"); });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Cut, WaitsOfSeveralThreadsGoOnOverANewConnection) {
  std::string got, seen;
  absl::Status waited = absl::UnknownError("not run");
  std::thread getter([&] { got = store_.get("late"); });
  std::thread waiter([&] { waited = store_.try_wait({"late", "later"}); });
  std::thread watcher([&] { seen = store_.watch("late", ""); });
  while (server_->num_waiters() < 3) std::this_thread::yield();
  proxy_.cut();
  // The server has dropped the waits; the client must repeat them.
  while (server_->num_waiters() < 3) std::this_thread::yield();
  direct_.set("late", "here");
  getter.join();
  watcher.join();
  direct_.set("later", "");
  waiter.join();
  EXPECT_EQ(got, "here");
  EXPECT_EQ(seen, "here");
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(server_->num_waiters(), 0);
}

TEST_F(Cut, AddsOfManyThreadsOverBreakingConnectionsCountAtMostOnce) {
  constexpr int kThreads = 4, kAdds = 100;
  std::atomic<int> done{0}, unsure{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAdds; ++i) {
        const absl::Status status = store_.try_add("counter", 1).status();
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        (status.ok() ? done : unsure).fetch_add(1);
      }
    });
  }
  for (int cut = 1; cut <= 5; ++cut) {
    while (done + unsure < cut * kThreads * kAdds / 6) std::this_thread::yield();
    proxy_.cut();
  }
  for (std::thread& thread : threads) thread.join();
  const int64_t sum = direct_.add("counter", 0);
  EXPECT_GE(sum, done.load());
  EXPECT_LE(sum, done + unsure);
  EXPECT_EQ(done + unsure, kThreads * kAdds);
  EXPECT_LT(unsure, kThreads * kAdds / 2);
}

TEST(TcpStoreFaults, WaitingUsesNoProcessor) {
  TcpStore master("localhost", 0, {.is_master = true});
  TcpStore store("localhost", master.port());
  const absl::Duration before = cpu_time();
  EXPECT_TRUE(absl::IsDeadlineExceeded(store.try_get("never", absl::Seconds(1)).status()));
  // Sleeping takes a few milliseconds of processor time; polling would take up to a second.
  EXPECT_LT(cpu_time() - before, absl::Milliseconds(100));
}

TEST(TcpStoreFaults, StoresLeaveNoThreadsOrDescriptors) {
  { TcpStore warm_up("localhost", 0, {.is_master = true}); }
  const transport::ProcessCounts before;
  for (int round = 0; round < 3; ++round) {
    TcpStore master("localhost", 0, {.is_master = true});
    std::vector<std::unique_ptr<TcpStore>> stores;
    for (int i = 0; i < 4; ++i) stores.push_back(std::make_unique<TcpStore>("localhost", master.port()));
    for (auto& store : stores) store->add("counter", 1);
    EXPECT_EQ(master.get("counter"), "4");
  }
  EXPECT_EQ(before.left(), "");
}

// A server that closes each connection at once.
class ClosingServer {
 public:
  ClosingServer() : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listening_.get(), any, length), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listening_.get(), any, &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      while (Descriptor(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid()) {
      }
    });
  }
  ~ClosingServer() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  Descriptor listening_;
  int port_ = 0;
  std::thread thread_;
};

TEST(TcpStoreClientFaults, DialsAgainAfterAnException) {
  ClosingServer server;
  std::atomic<int> asked{0};
  TcpStoreClient client({.endpoint = {"127.0.0.1", server.port()},
                         .name = "store",
                         .is_other_server =
                             [&](absl::Duration) {
                               if (asked++ == 0) throw std::bad_alloc();
                               return true;
                             }},
                        value_or_throw(StoreLoop::create("store")), Clock::system());
  EXPECT_THROW((void)client.connect(Clock::system().now() + absl::Seconds(20)), std::bad_alloc);
  const absl::Status status = client.connect(Clock::system().now() + absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

}  // namespace
}  // namespace gradwire::store
