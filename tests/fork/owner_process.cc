// A program that owns something of the library and forks.
//   owner_process OWNER END
// OWNER: agent, agent_tcp, group, group_messages, group_tcp, store, pool, http. END: what the child does.
//   _exit, exit     ends with handles in static variables
//   return          returns from main() with handles on its stack
//   exec            runs another program
//   use             calls the functions of the handles, destroys them, and makes an owner of its own
//   handler         (agent, pool) a handler forks, and the child returns from it
// Exit code 0: the child ended in time with the right code, and the parent could use everything afterwards.
//
//   owner_process hold OWNER WHERE NAME
// Joins the group of a test as its second member, or serves a store (OWNER: agent, group, store). Forks a
// child that lives until the standard input ends, prints a line, and waits.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/fork/functions.h"
#include "gradwire/transport/http/http_server.h"

namespace gradwire {
namespace {

constexpr int kEnded = 7;
constexpr absl::Duration kTimeout = absl::Minutes(10);
// Before the fork, and after it.
constexpr int kFew = 10;
constexpr int kMany = 1'000;

void check(bool holds, absl::string_view what) {
  if (holds) return;
  std::cerr << "process " << getpid() << ": " << what << "\n";
  std::_Exit(1);
}

// The function must fail at once, because the objects belong to the parent.
void check_refused(absl::string_view what, const std::function<void()>& function) {
  const absl::Time start = absl::Now();
  absl::Status status;
  try {
    function();
  } catch (const Error& error) {
    status = error.status();
  }
  check(absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "is a fork"),
        absl::StrCat(what, ": ", status.ToString()));
  check(absl::Now() - start < absl::Seconds(5), absl::StrCat(what, " took long"));
}

// Something that owns threads, descriptors or shared memory.
class Owner {
 public:
  virtual ~Owner() = default;
  // In the process that made it: this number of operations works.
  virtual void work(int operations) = 0;
  // In a forked child: every function is refused at once.
  virtual void misuse() = 0;
  // Forks in a handler, and returns the child, which returns from the handler.
  virtual pid_t fork_in_handler() { std::abort(); }
};

class Agents : public Owner {
 public:
  explicit Agents(const std::string& transport) {
    rpc::RpcBackendOptions options;
    options.store = std::make_shared<store::HashStore>();
    options.transports = {transport};
    options.join_timeout = kTimeout;
    std::thread other([&] { b_ = rpc::Agent::start("b", 1, 2, options); });
    a_ = rpc::Agent::start("a", 0, 2, options);
    other.join();
    received_ = a_->rpc_sync<&fork_test::tensor>("b", 1 << 16);
    pending_ = a_->rpc_async<&fork_test::never>("b");
  }
  void work(int operations) override {
    for (int i = 0; i < operations; ++i)
      check(a_->rpc_sync<&fork_test::twice>("b", i) == 2 * i, "wrong answer");
    // The child has dropped its copy of the tensor, whose memory it shares with this process.
    for (int i = 0; i < 20; ++i) (void)a_->rpc_sync<&fork_test::tensor>("b", 1 << 16);
    check(received_.sum().item<double>() == double{1 << 16}, "the received tensor has changed");
  }
  void misuse() override {
    check_refused("rpc_sync", [&] { (void)a_->rpc_sync<&fork_test::twice>("b", 1); });
    check_refused("rpc_async",
                  [&] { (void)value_or_throw(a_->rpc_async<&fork_test::twice>("b", 1).result()); });
    check_refused("wait", [&] { (void)value_or_throw(pending_.result()); });
    check_refused("worker_state", [&] { (void)a_->worker_state("b"); });
    check_refused("barrier", [&] { a_->barrier({"a", "b"}); });
    check_refused("statistics", [&] { (void)a_->statistics(); });
    check_refused("shutdown", [&] { a_->shutdown(); });
    received_ = at::Tensor();
    pending_ = Future<int64_t>();
    a_.reset();
    b_.reset();
  }
  pid_t fork_in_handler() override { return static_cast<pid_t>(a_->rpc_sync<&fork_test::forks>("b")); }

 private:
  std::shared_ptr<rpc::Agent> a_, b_;
  at::Tensor received_;
  Future<int64_t> pending_;
};

class Groups : public Owner {
 public:
  explicit Groups(const std::map<std::string, std::string>& options) {
    const auto store = std::make_shared<store::HashStore>();
    std::thread other([&] { groups_[1] = join(1, store, options); });
    groups_[0] = join(0, store, options);
    other.join();
    run([](collectives::ProcessGroup& group) { group.barrier(); });
    pending_ = groups_[0]->irecv(at::ones({4}), 1, 9);
  }
  void work(int operations) override {
    run([operations](collectives::ProcessGroup& group) {
      for (int i = 0; i < operations; ++i) {
        at::Tensor tensor = at::ones({100});
        group.all_reduce(tensor);
        check(tensor.sum().item<double>() == 200, "wrong sum");
      }
    });
    groups_[1]->send(at::ones({4}), 0, 9);
    pending_->wait();
    pending_ = groups_[0]->irecv(at::ones({4}), 1, 9);
  }
  void misuse() override {
    const auto& group = groups_[0];
    check_refused("all_reduce", [&] { group->all_reduce(at::ones({4})); });
    check_refused("all_reduce_async", [&] { (void)group->all_reduce_async(at::ones({4})); });
    check_refused("send", [&] { group->send(at::ones({4}), 1, 1); });
    check_refused("irecv", [&] { (void)group->irecv(at::ones({4}), 1, 1); });
    check_refused("wait", [&] { pending_->wait(); });
    check_refused("barrier", [&] { group->barrier(); });
    check_refused("monitored_barrier", [&] { group->monitored_barrier(); });
    check_refused("new_group", [&] { (void)group->new_group(); });
    check_refused("destroy", [&] { group->destroy(); });
    pending_ = nullptr;
    for (auto& each : groups_) each.reset();
  }

 private:
  static std::shared_ptr<collectives::ProcessGroup> join(int rank, const std::shared_ptr<store::Store>& store,
                                                         const std::map<std::string, std::string>& options) {
    return collectives::ProcessGroup::create({.backend = "cpu",
                                              .timeout = kTimeout,
                                              .world_size = 2,
                                              .rank = rank,
                                              .store = store,
                                              .options = options});
  }
  void run(const std::function<void(collectives::ProcessGroup&)>& body) {
    std::thread other([&] { body(*groups_[1]); });
    body(*groups_[0]);
    other.join();
  }

  std::shared_ptr<collectives::ProcessGroup> groups_[2];
  std::shared_ptr<collectives::Work> pending_;
};

class Stores : public Owner {
 public:
  Stores() : master_("127.0.0.1", 0, {.is_master = true}), client_("127.0.0.1", master_.port()) {
    client_.set("before", "1");
  }
  void work(int operations) override {
    for (int i = 0; i < operations; ++i) check(client_.add("sum", 1) == ++sum_, "wrong sum");
    check(master_.get("before") == "1", "lost value");
  }
  void misuse() override {
    for (store::Store* const each :
         {static_cast<store::Store*>(&master_), static_cast<store::Store*>(&client_)}) {
      check_refused("get", [&] { (void)each->get("before"); });
      check_refused("set", [&] { each->set("before", "2"); });
      check_refused("add", [&] { (void)each->add("sum", 1); });
      check_refused("wait", [&] { each->wait({"missing"}); });
      check_refused("clone", [&] { (void)each->clone(); });
    }
  }

 private:
  store::TcpStore master_, client_;
  int64_t sum_ = 0;
};

class Threads : public Owner {
 public:
  Threads() : pool_({.num_threads = 2}) {}
  void work(int operations) override {
    std::atomic<int> ran{0};
    for (int i = 0; i < operations; ++i) {
      pool_.post_or_run([&] { ++ran; });
      timers_.schedule(absl::InfinitePast(), [&] { ++ran; });
    }
    check(eventually([&] { return ran == 2 * operations; }), "tasks are missing");
  }
  void misuse() override {
    Executor::Task task = [] {};
    check(!pool_.post(task), "the pool took a task");
    check(timers_.schedule(absl::InfinitePast(), [] {}) == 0, "the queue took a timer");
    pool_.shutdown();
    timers_.shutdown();
  }
  pid_t fork_in_handler() override {
    std::atomic<pid_t> child{0};
    pool_.post_or_run([&] { child = fork(); });
    check(eventually([&] { return child != 0; }), "no child");
    return child;
  }

 private:
  ThreadPool pool_;
  TimerQueue timers_;
};

class Pages : public Owner {
 public:
  // A relative path, because the path of a socket must be short.
  Pages() : path_(absl::StrCat("http.", getpid())) {
    check(chdir(std::getenv("TEST_TMPDIR")) == 0, "no folder for temporary files");
    transport::HttpOptions options;
    options.address = absl::StrCat("unix:", path_);
    server_ = value_or_throw(transport::HttpServer::start(options, {}));
  }
  void work(int) override { check(access(path_.c_str(), F_OK) == 0, "the socket's file is gone"); }
  void misuse() override {
    server_->stop();
    server_.reset();
  }

 private:
  const std::string path_;
  std::unique_ptr<transport::HttpServer> server_;
};

std::unique_ptr<Owner> make(const std::string& owner) {
  if (owner == "agent") return std::make_unique<Agents>("shm");
  if (owner == "agent_tcp") return std::make_unique<Agents>("tcp");
  if (owner == "group") return std::make_unique<Groups>(std::map<std::string, std::string>());
  if (owner == "group_messages")
    return std::make_unique<Groups>(std::map<std::string, std::string>{{"shared_memory", "off"}});
  if (owner == "group_tcp")
    return std::make_unique<Groups>(
        std::map<std::string, std::string>{{"shared_memory", "off"}, {"transports", "tcp"}});
  if (owner == "store") return std::make_unique<Stores>();
  if (owner == "pool") return std::make_unique<Threads>();
  if (owner == "http") return std::make_unique<Pages>();
  std::abort();
}

// Waits for the end of the child. A child that hangs is killed by its alarm.
void await(pid_t child, int code) {
  int status = 0;
  check(waitpid(child, &status, 0) == child, "no child");
  check(WIFEXITED(status) && WEXITSTATUS(status) == code, absl::StrCat("the child ended with ", status));
}

std::unique_ptr<Owner> in_static_variable;

int run(const std::string& name, const std::string& end) {
  std::unique_ptr<Owner> owner = make(name);
  if (end == "_exit" || end == "exit") in_static_variable = std::move(owner);
  Owner& used = end == "_exit" || end == "exit" ? *in_static_variable : *owner;
  used.work(kFew);
  if (end == "handler") {
    await(used.fork_in_handler(), 1);
    used.work(kMany);
    return 0;
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    if (end == "_exit") _exit(kEnded);
    if (end == "exit") std::exit(kEnded);
    if (end == "exec") execl("/bin/sh", "sh", "-c", absl::StrCat("exit ", kEnded).c_str(), nullptr);
    if (end == "use") {
      owner->misuse();
      owner.reset();
      make(name)->work(kFew);
    }
    return kEnded;
  }
  await(child, kEnded);
  used.work(kMany);
  return 0;
}

int hold(const std::string& owner, const std::string& where, const std::string& option) {
  std::shared_ptr<rpc::Agent> agent;
  std::shared_ptr<collectives::ProcessGroup> group;
  std::shared_ptr<store::TcpStore> store;
  std::string line = "ready";
  if (owner == "agent") {
    rpc::RpcBackendOptions options;
    options.store = std::make_shared<store::FileStore>(where);
    options.transports = {option};
    agent = rpc::Agent::start("b", 1, 2, options);
    (void)agent->rpc_sync<&fork_test::twice>("a", 1);
  } else if (owner == "group") {
    std::map<std::string, std::string> options;
    if (option != "shm") options = {{"shared_memory", "off"}, {"transports", option}};
    group = collectives::ProcessGroup::create({.backend = "cpu",
                                               .timeout = absl::Minutes(10),
                                               .world_size = 2,
                                               .rank = 1,
                                               .store = std::make_shared<store::FileStore>(where),
                                               .options = options});
    group->barrier();
  } else {
    store = std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true});
    line = absl::StrCat(store->port());
  }
  if (fork() == 0) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(0);
  }
  std::cout << line << std::endl;
  while (true) pause();
}

}  // namespace
}  // namespace gradwire

// A forked child does not have the threads whose stacks refer to objects, so a check would report them all.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

int main(int argc, char** argv) {
  // A forked child cannot use the OpenMP threads of its parent.
  at::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 4) return gradwire::hold(arguments[1], arguments[2], arguments[3]);
  return gradwire::run(arguments.at(0), arguments.at(1));
}
