#include "gradwire/base/process/shortage.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Shortage, StatusNamesTheLimitAndItsValue) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const absl::Status status = system_status("cannot accept a connection", EMFILE);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), absl::StrCat("cannot accept a connection: Too many open files; the limit is "
                                           "RLIMIT_NOFILE = ",
                                           files.rlim_cur, " (ulimit -n)"));
}

TEST(Shortage, EachShortageIsLocalAndNamesItsLimit) {
  const std::vector<std::pair<absl::Status, std::string>> cases = {
      {system_status("x", ENFILE), "fs.file-max"},
      {system_status("x", EFBIG), "RLIMIT_FSIZE"},
      {system_status("x", ENOBUFS), "net.core"},
      {system_status("x", ENOSPC), "space"},
      {system_status("x", ENOSPC, Resource::kWatch), "fs.epoll.max_user_watches"},
      {system_status("x", EDQUOT), "quota"},
      {system_status("x", ENOMEM), "memory.max"},
      {system_status("x", ENOMEM, Resource::kMapping), "RLIMIT_AS"},
      {system_status("x", EAGAIN, Resource::kThread), "RLIMIT_NPROC"},
  };
  for (const auto& [status, name] : cases) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("the limit is"), HasSubstr(name)));
    EXPECT_TRUE(is_local_shortage(status)) << status;
  }
}

TEST(Shortage, OtherErrorsAreUnavailable) {
  EXPECT_EQ(system_status("x", EAGAIN).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(system_status("x", ECONNREFUSED), errno_status("x", ECONNREFUSED));
  EXPECT_FALSE(is_local_shortage(system_status("x", ECONNREFUSED)));
}

TEST(Shortage, OtherLimitsAreNotLocalShortages) {
  EXPECT_FALSE(is_local_shortage(absl::ResourceExhaustedError("the flow window is full")));
  EXPECT_FALSE(is_local_shortage(absl::OkStatus()));
}

TEST(Shortage, ContextAndWorkerLeaveAShortageLocal) {
  const absl::Status status =
      with_context(with_worker(system_status("x", EMFILE), "b"), "connecting to worker \"b\"");
  EXPECT_TRUE(is_local_shortage(status)) << status;
  EXPECT_EQ(worker_of(status), "b");
}

}  // namespace
}  // namespace gradwire
