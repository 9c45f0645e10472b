// An allocation fails in any thread of a process with two agents. The process serves on, or ends with a
// message.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/failing_memory.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string echo(const std::string& text) { return text; }
GRADWIRE_RPC(echo)

Future<std::string> echo_later(const std::string& text) {
  co_return co_await rpc_async<&echo>("worker0", text);
}
GRADWIRE_RPC(echo_later)

Stream<std::string> echo_often(std::string text) {
  for (int i = 0; i < 3; ++i) co_yield text;
}
GRADWIRE_RPC(echo_often)

// A kind of work that worker0 asks of worker1. `run` returns `text`.
struct Work {
  const char* name;
  std::string (*run)(Agent& agent, const std::string& text);
  // A take of a stream may stay open until its worker ends, so the workers do not wait for each other.
  bool ends_by_force = false;
};

std::string call(Agent& agent, const std::string& text) { return agent.rpc_sync<&echo>("worker1", text); }
std::string call_large(Agent& agent, const std::string& text) {
  std::string large = text;
  large.resize(1 << 20, 'x');
  return agent.rpc_async<&echo>("worker1", large).wait().substr(0, text.size());
}
std::string call_later(Agent& agent, const std::string& text) {
  return agent.rpc_async<&echo_later>("worker1", text).wait();
}
std::string keep_remotely(Agent& agent, const std::string& text) {
  return agent.remote<&echo>("worker1", text).to_here();
}
std::string read_stream(Agent& agent, const std::string& text) {
  RemoteStream<std::string> stream = agent.rpc_stream<&echo_often>("worker1", text);
  std::string last;
  while (const std::optional<std::string> item = stream.next()) last = *item;
  return last;
}

// How long the calls of one failing allocation may take.
constexpr unsigned kSeconds = 60;
constexpr int kMost = 5'000;
// The child found a call that does not work.
constexpr int kBroken = 3;

// How a child has ended.
struct End {
  int status = 0;
  // The allocation that was to fail last.
  int allocation = 0;
  std::string output;
};

class NoMemoryAnywhere : public ::testing::TestWithParam<std::tuple<Work, std::string>> {
 protected:
  void SetUp() override {
    allocation_ = static_cast<int*>(
        ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(static_cast<void*>(allocation_), MAP_FAILED);
  }
  void TearDown() override { ::munmap(allocation_, sizeof(int)); }

  // Runs a child in which the allocations from `first` on fail, one after the other, until all have.
  End run_child(int first) {
    int output[2];
    EXPECT_EQ(::pipe(output), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(output[1], STDERR_FILENO);
      ::dup2(output[1], STDOUT_FILENO);
      ::close(output[0]);
      ::close(output[1]);
      fail_from(first);
      ::_exit(HasFailure() ? kBroken : 0);
    }
    ::close(output[1]);
    End end;
    char bytes[4096];
    for (ssize_t n; (n = ::read(output[0], bytes, sizeof bytes)) > 0;) end.output.append(bytes, n);
    ::close(output[0]);
    EXPECT_EQ(::waitpid(child, &end.status, 0), child);
    end.allocation = *allocation_;
    return end;
  }

 private:
  void fail_from(int first) {
    ::alarm(kSeconds);
    const auto& [work, transport] = GetParam();
    RpcBackendOptions options;
    options.transports = {transport};
    options.rpc_timeout = absl::Seconds(20);
    testing::Group group(2, options);
    const std::string text(100, 'x');
    bool failed = true;
    for (int n = first; failed && n < kMost && !HasFailure(); ++n) {
      ::alarm(kSeconds);
      *allocation_ = n;
      SCOPED_TRACE(absl::StrCat("allocation ", n));
      {
        const FailingMemoryOfProcess failing(n - 1);
        try {
          EXPECT_EQ(work.run(*group[0], text), text);
        } catch (const Error& error) {
          // Nothing waits for its deadline.
          EXPECT_FALSE(absl::IsDeadlineExceeded(error.status())) << error.what();
        } catch (const std::bad_alloc&) {
        }
        failed = failing.failed();
      }
      for (const int from : {0, 1}) {
        // A connection that had no memory may still be closing.
        EXPECT_TRUE(eventually([&] {
          try {
            return group[from]->rpc_sync<&echo>(absl::StrCat("worker", 1 - from), text) == text;
          } catch (const Error&) {
            return false;
          }
        }));
      }
    }
    if (work.ends_by_force) {
      for (const std::size_t rank : {0, 1}) group.kill(rank);
    }
  }

  int* allocation_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Works, NoMemoryAnywhere,
                         ::testing::Combine(::testing::Values(Work{"Call", call}, Work{"Large", call_large},
                                                              Work{"Later", call_later},
                                                              Work{"Remote", keep_remotely},
                                                              Work{"Stream", read_stream, true}),
                                            ::testing::Values("tcp", "shm")),
                         [](const auto& each) {
                           return absl::StrCat(std::get<0>(each.param).name, "_", std::get<1>(each.param));
                         });

TEST_P(NoMemoryAnywhere, ProcessServesOnOrEndsWithAMessage) {
  int next = 1;
  int ends = 0;
  int last = 0;
  while (true) {
    const End end = run_child(next);
    last = end.allocation;
    if (WIFEXITED(end.status)) {
      EXPECT_EQ(WEXITSTATUS(end.status), 0) << "allocation " << end.allocation << ":\n" << end.output;
      break;
    }
    ++ends;
    ASSERT_EQ(WTERMSIG(end.status), SIGABRT) << "allocation " << end.allocation << ":\n" << end.output;
    // By run_or_end(), or by std::terminate() in a destructor.
    ASSERT_THAT(end.output,
                AnyOf(HasSubstr("and the process ends"),
                      HasSubstr("terminate called after throwing an instance of 'std::bad_alloc'")))
        << "allocation " << end.allocation;
    next = end.allocation + 1;
  }
  std::printf("%d allocations, of which %d have ended the process\n", last, ends);
}

}  // namespace
}  // namespace gradwire::rpc
