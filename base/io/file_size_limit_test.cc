#include "gradwire/base/io/file_size_limit.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/write.h"
#include "gradwire/base/testing/limits.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

constexpr std::size_t kLimit = 64 << 10;

// The status of a child, under the limit, that ends with 0 if `program` returns true.
int under_limit(absl::FunctionRef<bool(int file)> program) {
  return status_in_child([&] {
    const LimitScope limit(RLIMIT_FSIZE, kLimit);
    const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
    return program(file.get()) ? 0 : 1;
  });
}

bool is_pending() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

void block_file_size_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
}

volatile sig_atomic_t handled = 0;

// The kernel behaves as the others expect.
TEST(FileSizeLimit, EndsTheProcessOutsideOfAScope) {
  const int status = under_limit([](int file) { return ::ftruncate(file, 1 << 20) != 0; });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
}

TEST(FileSizeLimit, IsAnErrorInsideOfAScope) {
  EXPECT_EQ(under_limit([](int file) {
              const NoFileSizeSignal no_signal;
              const bool truncate = ::ftruncate(file, 1 << 20) != 0 && errno == EFBIG;
              const bool write = ::pwrite(file, "x", 1, kLimit) < 0 && errno == EFBIG;
              return truncate && write && ::ftruncate(file, kLimit) == 0;
            }),
            0);
}

TEST(FileSizeLimit, IsAnErrorOfWrite) {
  EXPECT_EQ(under_limit([](int file) {
              const std::string fits(kLimit, 'x');
              const bool whole = write_all(file, fits);
              errno = 0;
              return whole && !write_all(file, "x") && errno == EFBIG && write_retrying(file, "x", 1) < 0;
            }),
            0);
}

TEST(FileSizeLimit, AScopeEndsWithTheMaskAndWithoutAPendingSignal) {
  EXPECT_EQ(under_limit([](int file) {
              ::signal(SIGXFSZ, [](int) { handled = handled + 1; });
              {
                const NoFileSizeSignal outer;
                const NoFileSizeSignal inner;
                if (::ftruncate(file, 1 << 20) == 0) return false;
              }
              if (handled != 0 || is_pending()) return false;
              // The program's own writes still send its signal.
              return ::ftruncate(file, 1 << 20) != 0 && handled == 1;
            }),
            0);
}

TEST(FileSizeLimit, APendingSignalOfTheProgramStaysPending) {
  EXPECT_EQ(under_limit([](int file) {
              block_file_size_signal();
              ::raise(SIGXFSZ);
              { const NoFileSizeSignal no_signal; }
              return is_pending() && !write_all(file, std::string(kLimit + 1, 'x')) && is_pending();
            }),
            0);
}

TEST(FileSizeLimit, ABlockedSignalDoesNotBecomePending) {
  EXPECT_EQ(under_limit([](int file) {
              block_file_size_signal();
              return !write_all(file, std::string(kLimit + 1, 'x')) && !is_pending();
            }),
            0);
}

TEST(FileSizeLimit, IsTheLargestNumberWithoutALimit) {
  const LimitScope limit(RLIMIT_FSIZE, RLIM_INFINITY);
  EXPECT_EQ(file_size_limit(), std::numeric_limits<uint64_t>::max());
}

}  // namespace
}  // namespace gradwire
