#include "gradwire/collectives/cpu/memory/host_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr const char* kToken = "0123456789abcdef";

HostMemory::Options options_for(int index, int size, const std::shared_ptr<store::Store>& store) {
  // The timeout is so long that waiting for it would be noticed.
  return {.index = index, .size = size, .store = store, .slot_bytes = 4096, .timeout = absl::Minutes(10)};
}

// Returns the error of member 1 for this entry of member 0.
absl::Status reach(const std::string& entry) {
  const auto store = std::make_shared<store::HashStore>();
  EXPECT_TRUE(store->try_set("memory", entry).ok());
  return HostMemory::join(options_for(1, 2, store)).status();
}

std::string entry_of(const Descriptor& descriptor) {
  return absl::StrCat(::getpid(), " ", descriptor.get(), " ", kToken);
}

TEST(HostMemory, FailureToCreateFailsTheOthersAtOnce) {
  const auto store = std::make_shared<store::HashStore>();
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status made = HostMemory::join(options_for(0, 3, store)).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(made.code(), absl::StatusCode::kResourceExhausted) << made;
  EXPECT_TRUE(absl::StrContains(made.message(), "RLIMIT_NOFILE")) << made;
  for (int index = 1; index < 3; ++index) {
    HostMemory::Options options = options_for(index, 3, store);
    // An entry that is already in the store is found even with a zero timeout.
    options.timeout = absl::ZeroDuration();
    const absl::Status reached = HostMemory::join(options).status();
    EXPECT_EQ(reached.code(), absl::StatusCode::kUnavailable) << reached;
    EXPECT_TRUE(absl::StrContains(reached.message(), "member 0 cannot share memory")) << reached;
    EXPECT_TRUE(absl::StrContains(reached.message(), made.message())) << reached;
  }
}

TEST(HostMemory, MemberThatCannotOpenItIsNotWaitedFor) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread other([&] {
    // A different slot size, so the memory has a different size.
    HostMemory::Options options = options_for(1, 2, store);
    options.slot_bytes = 8192;
    EXPECT_EQ(HostMemory::join(options).status().code(), absl::StatusCode::kInvalidArgument);
  });
  const absl::Status status = HostMemory::join(options_for(0, 2, store)).status();
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "member 1 cannot share memory")) << status;
}

TEST(HostMemory, MalformedEntriesAreInvalid) {
  for (const std::string& entry :
       {std::string(), std::string("x"), absl::StrCat("1 2 3"), absl::StrCat("-1 5 ", kToken),
        absl::StrCat("0 5 ", kToken), absl::StrCat(::getpid(), " -5 ", kToken),
        absl::StrCat(::getpid(), " ../../1/fd/5 ", kToken), absl::StrCat(::getpid(), " 5 ", kToken, " "),
        absl::StrCat("99999999999 5 ", kToken), std::string(100'000, '\xff')}) {
    const absl::Status status = reach(entry);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "expected \"<process> <descriptor> <token>\"")) << status;
  }
}

// A pipe and a device: opening one of them may block or have an effect.
TEST(HostMemory, OtherKindsOfFilesAreNotOpened) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/pipe_", ::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const std::string& file : {path, std::string("/dev/null")}) {
    SCOPED_TRACE(file);
    const Descriptor held(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(held.valid());
    const Descriptor watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ASSERT_GE(::inotify_add_watch(watch.get(), file.c_str(), IN_OPEN), 0);
    const absl::Status status = reach(entry_of(held));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "is not shared memory")) << status;
    // Other processes of this host may open the device, but no other process knows the pipe.
    char events[4096];
    if (file == path) {
      EXPECT_EQ(::read(watch.get(), events, sizeof(events)), -1);
    }
  }
  ::unlink(path.c_str());
}

TEST(HostMemory, MemoryOfAnotherGroupIsRefused) {
  const Descriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1 << 20), 0);
  EXPECT_EQ(reach(entry_of(unsealed)).code(), absl::StatusCode::kInvalidArgument);
  // A descriptor that is not open.
  EXPECT_EQ(reach(absl::StrCat(::getpid(), " 1000000 ", kToken)).code(), absl::StatusCode::kUnavailable);
}

// The owner of the memory could change it at any time.
TEST(HostMemory, MemoryOfAnotherUserIsRefused) {
  const std::size_t bytes = 1 << 20;
  Descriptor descriptor;
  ASSERT_TRUE(transport::SharedMemory::create(bytes, false, descriptor).ok());
  constexpr uid_t kNobody = 65534;
  GRADWIRE_NEEDS("root", ::fchown(descriptor.get(), kNobody, static_cast<gid_t>(-1)) == 0
                             ? absl::OkStatus()
                             : absl::PermissionDeniedError("cannot give a file to another user"));
  const absl::Status status = reach(entry_of(descriptor));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("of user ", kNobody, ", expected"))) << status;
}

TEST(HostMemory, AProcessThatHasEndedIsUnavailable) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const absl::Status status = reach(absl::StrCat(child, " 5 ", kToken));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace gradwire::collectives::cpu
