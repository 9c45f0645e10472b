// fork() in processes that own threads, sockets and shared memory.

#include "gradwire/base/fork.h"

#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/fork/functions.h"
#include "gtest/gtest.h"

extern char** environ;

namespace gradwire {
namespace {

// An owner_process. The destructor kills it, and ends its forked child.
class OwnerProcess {
 public:
  explicit OwnerProcess(std::vector<std::string> arguments) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    input_ = Descriptor(in[1]);
    output_ = Descriptor(out[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    arguments.insert(arguments.begin(), "tests/fork/owner_process");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
  }
  ~OwnerProcess() { kill(); }
  OwnerProcess(const OwnerProcess&) = delete;
  OwnerProcess& operator=(const OwnerProcess&) = delete;

  std::string line() {
    std::string text;
    char byte;
    while (::read(output_.get(), &byte, 1) == 1 && byte != '\n') text += byte;
    return text;
  }
  // Returns when the process has ended. Its forked child lives on.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  // The exit code, or minus the number of a signal.
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  Descriptor input_, output_;
  pid_t pid_ = 0;
};

class ForkedChild : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(ForkedChild, EndsAtOnceAndItsParentGoesOn) {
  const auto [owner, end] = GetParam();
  EXPECT_EQ(OwnerProcess({owner, end}).wait(), 0);
}

std::string name_of_pair(const ::testing::TestParamInfo<ForkedChild::ParamType>& info) {
  const std::string end = std::get<1>(info.param);
  return absl::StrCat(std::get<0>(info.param), "_", end[0] == '_' ? "quick" + end : end);
}

INSTANTIATE_TEST_SUITE_P(Owners, ForkedChild,
                         ::testing::Combine(::testing::Values("agent", "agent_tcp", "group", "group_messages",
                                                              "group_tcp", "store", "pool", "http"),
                                            ::testing::Values("_exit", "exit", "return", "exec", "use")),
                         name_of_pair);
INSTANTIATE_TEST_SUITE_P(Handlers, ForkedChild,
                         ::testing::Combine(::testing::Values("agent", "agent_tcp", "pool"),
                                            ::testing::Values("handler")),
                         name_of_pair);

// Far less than the times after which silence counts: 20 s for a worker, 10 minutes for these groups.
constexpr absl::Duration kSoon = absl::Seconds(10);

std::string path_of(const char* name) { return absl::StrCat(::testing::TempDir(), "/", name, ".", getpid()); }

class ParentThatIsKilled : public ::testing::TestWithParam<const char*> {};

TEST_P(ParentThatIsKilled, IsDeadForItsCallersAtOnce) {
  const std::string path = path_of(absl::StrCat("agents_", GetParam()).c_str());
  OwnerProcess other({"hold", "agent", path, GetParam()});
  rpc::RpcBackendOptions options;
  options.store = std::make_shared<store::FileStore>(path);
  options.transports = {GetParam()};
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::start("a", 0, 2, options);
  ASSERT_EQ(other.line(), "ready");
  const Future<int64_t> call =
      agent->rpc_async<&fork_test::never>(rpc::Destination("b").with_timeout(absl::InfiniteDuration()));
  EXPECT_EQ(agent->rpc_sync<&fork_test::twice>("b", 2), 4);
  other.kill();
  const absl::Time start = absl::Now();
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kUnavailable) << call.result().status();
  EXPECT_LT(absl::Now() - start, kSoon);
}

TEST_P(ParentThatIsKilled, IsNamedByItsGroupAtOnce) {
  const std::string path = path_of(absl::StrCat("group_", GetParam()).c_str());
  OwnerProcess other({"hold", "group", path, GetParam()});
  std::map<std::string, std::string> options;
  if (std::string(GetParam()) != "shm") options = {{"shared_memory", "off"}, {"transports", GetParam()}};
  const auto group = collectives::ProcessGroup::create({.backend = "cpu",
                                                        .timeout = absl::Minutes(10),
                                                        .world_size = 2,
                                                        .rank = 0,
                                                        .store = std::make_shared<store::FileStore>(path),
                                                        .options = options});
  group->barrier();
  ASSERT_EQ(other.line(), "ready");
  other.kill();
  const absl::Time start = absl::Now();
  const absl::Status status = status_of([&] { group->all_reduce(at::ones({1000})); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
  EXPECT_LT(absl::Now() - start, kSoon);
}

INSTANTIATE_TEST_SUITE_P(Transports, ParentThatIsKilled, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(StoreWhoseMasterIsKilled, IsUnavailableAtOnceAndItsPortIsFree) {
  OwnerProcess master({"hold", "store", "", ""});
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(master.line(), &port));
  store::TcpStore client("127.0.0.1", port);
  client.set("key", "value");
  master.kill();
  const absl::Time start = absl::Now();
  const absl::Status status = status_of([&] { client.wait({"missing"}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_LT(absl::Now() - start, kSoon);
  store::TcpStore again("127.0.0.1", port, {.is_master = true});
  EXPECT_EQ(again.port(), port);
}

TEST(DescriptorOfTheLibrary, IsClosedInAChild) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  Descriptor moved = std::move(writer);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool open = ::fcntl(ends[0], F_GETFD) >= 0 || ::fcntl(ends[1], F_GETFD) >= 0;
    // The number of the parent's descriptor, which the child uses for another file.
    const int own = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    moved.reset();
    ::_exit(open || reader.valid() || ::fcntl(own, F_GETFD) < 0 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::write(moved.get(), "x", 1), 1);
}

TEST(DescriptorOfTheLibrary, StaysOpenInAChildThatGoesOnAsItsParent) {
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t child = fork_with_objects();
  if (child == 0) ::_exit(::fcntl(file.get(), F_GETFD) < 0 ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The mark of an object, in the child and in the child of the child.
TEST(MarkOfAProcess, NamesTheProcessOfTheObject) {
  const ProcessMark mark;
  EXPECT_TRUE(mark.check("it").ok());
  const std::string name = absl::StrCat("it belongs to process ", getpid(), ",");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool named = absl::StrContains(mark.check("it").message(), name) && ProcessMark().here();
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(absl::StrContains(mark.check("it").message(), name) ? 0 : 1);
    int status = -1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(named && status == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gradwire
