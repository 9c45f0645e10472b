#include "gradwire/store/file_store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/file/file_log.h"
#include "gradwire/store/interface/limits.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

class FileStoreTest : public ::testing::Test {
 protected:
  ~FileStoreTest() override { std::filesystem::remove(path_); }

  std::string contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  // Runs `body` in a child process, which exits with the result of `body`.
  static pid_t in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    return child;
  }
  static int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/file-store-", random_id());
};

TEST_F(FileStoreTest, KeysOutliveTheStoreThatHasNoWorldSize) {
  { FileStore(path_).set("key", "value"); }
  EXPECT_EQ(FileStore(path_).get("key"), "value");
}

// A folder that other users can reach, with a file of a FileStore.
class FileStoreOfSeveralUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    path_ = absl::StrCat(folder_, "/store");
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove_all(folder_);
  }

  char folder_[32] = "/tmp/gradwire_test_XXXXXX";
  std::string path_;
  // Opens a FileStore at a path, and gives everybody access to a file that it makes.
  static std::string open_in_other_process(const std::string& path) {
    const absl::Status status = FileStore::open(path, std::nullopt).status();
    if (status.ok()) ::chmod(path.c_str(), 0666);
    return std::string(absl::StatusCodeToString(status.code()));
  }
};

TEST_F(FileStoreOfSeveralUsers, AnotherUserCannotJoin) {
  OtherUser other(&open_in_other_process);
  ASSERT_EQ(::chmod(folder_, 0777), 0);
  const mode_t before = ::umask(0);
  FileStore store(path_);
  ::umask(before);
  struct stat file = {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600);
  EXPECT_EQ(other.ask(path_), "PERMISSION_DENIED");
  store.set("key", "value");
}

TEST_F(FileStoreOfSeveralUsers, FileThatAnotherUserHasMadeInASharedFolderIsRefused) {
  OtherUser other(&open_in_other_process);
  ASSERT_EQ(::chmod(folder_, 01777), 0);
  ASSERT_EQ(other.ask(path_), "OK");
  const absl::Status status = FileStore::open(path_, std::nullopt).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  // Linux itself refuses it with fs.protected_regular.
  EXPECT_TRUE(absl::StrContains(status.message(), "belongs to user 65534, expected user 0") ||
              absl::StrContains(status.message(), "Permission denied"))
      << status;
}

// The owner of the folder could replace every file in it anyway.
TEST_F(FileStoreOfSeveralUsers, FileThatTheOwnerOfTheFolderHasMadeIsOpened) {
  OtherUser other(&open_in_other_process);
  ASSERT_EQ(::chown(folder_, OtherUser::kUser, OtherUser::kUser), 0);
  ASSERT_EQ(::chmod(folder_, 01777), 0);
  ASSERT_EQ(other.ask(path_), "OK");
  EXPECT_EQ(FileStore::open(path_, std::nullopt).status().code(), absl::StatusCode::kOk);
}

TEST_F(FileStoreTest, TornTailOfAnyLengthIsCutOffByTheNextWriter) {
  {
    FileStore store(path_);
    store.set("whole", "1");
  }
  const std::string whole = contents();
  { FileStore(path_).set("torn", "0123456789"); }
  const std::string both = contents();
  for (std::size_t size = whole.size(); size < both.size(); ++size) {
    write(both.substr(0, size));
    FileStore store(path_);
    ASSERT_EQ(store.get("whole"), "1") << size;
    ASSERT_TRUE(absl::IsDeadlineExceeded(store.try_get("torn", absl::ZeroDuration()).status())) << size;
    ASSERT_EQ(store.add("next", 1), 1) << size;
    ASSERT_EQ(FileStore(path_).get("next"), "1") << size;
  }
  // All bytes are there, but the last one is wrong, as after a crash of the host.
  std::string wrong = both;
  wrong.back() ^= 1;
  write(wrong);
  EXPECT_EQ(FileStore(path_).num_keys(), 1);
}

// Otherwise each waiting process would lock and read the tail again every millisecond.
TEST_F(FileStoreTest, MultiSetOfAProcessThatDiesSetsAllKeysOrNone) {
  {
    FileStore store(path_);
    store.set("a", "old");
  }
  const std::size_t whole = contents().size();
  { FileStore(path_).multi_set({"a", "b", "a"}, {"first", "", "last"}); }
  const std::string both = contents();
  for (std::size_t size = whole; size <= both.size(); ++size) {
    write(both.substr(0, size));
    FileStore store(path_);
    const bool done = size == both.size();
    EXPECT_EQ(store.get("a"), done ? "last" : "old");
    EXPECT_EQ(store.check({"b"}), done);
  }
}

TEST_F(FileStoreTest, MalformedMultiSetIsDamage) {
  FileStore store(path_);
  store.set("key", "value");
  FileLog log;
  ASSERT_TRUE(log.open(path_, Clock::system(), Clock::system().now() + absl::Seconds(60)).ok());
  ASSERT_TRUE(log.read().ok());
  proto::MultiSetRequest more_keys;
  pack_keys({"key", "other"}, *more_keys.mutable_keys());
  pack_keys({"value"}, *more_keys.mutable_values());
  proto::FileRecord record;
  record.set_kind(proto::FileRecord::MULTI_SET);
  record.set_value(more_keys.SerializeAsString());
  ASSERT_TRUE(log.append(record.SerializeAsString()).ok());
  log.unlock();
  const absl::Status status = store.try_check({"key"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path_));
}

TEST_F(FileStoreTest, MultiSetOfTheLargestSizeIsReadAgain) {
  constexpr std::size_t kCount = 1000;
  std::vector<std::string> keys, values;
  for (std::size_t i = 0; i < kCount; ++i) {
    keys.push_back(absl::StrCat("key", i));
    values.emplace_back((kMaxMultiBytes - kCount * 6) / kCount, 'v');
  }
  { FileStore(path_).multi_set(keys, values); }
  EXPECT_EQ(FileStore(path_).num_keys(), kCount);
}

TEST_F(FileStoreTest, TornTailIsCutOffByAReaderThatWaits) {
  {
    FileStore store(path_);
    store.set("whole", "1");
  }
  const std::string whole = contents();
  { FileStore(path_).set("torn", "0123456789"); }
  const std::string both = contents();
  for (std::size_t size = whole.size() + 1; size < both.size(); ++size) {
    write(both.substr(0, size));
    FileStore store(path_);
    ASSERT_TRUE(absl::IsDeadlineExceeded(store.try_get("torn", absl::ZeroDuration()).status())) << size;
    ASSERT_EQ(contents(), whole) << size;
    ASSERT_EQ(store.get("whole"), "1");
  }
}

TEST_F(FileStoreTest, DamageInTheMiddleIsReportedAndNothingIsCutOff) {
  {
    FileStore store(path_);
    store.set("first", "1");
    store.set("second", "2");
  }
  std::string damaged = contents();
  damaged[16 + 16 + 3] ^= 1;  // In the body of the first record.
  write(damaged);
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(path_, std::nullopt).status()));
  EXPECT_EQ(contents(), damaged);
  // For a job with a world size the damaged file is a leftover like any other.
  EXPECT_EQ(FileStore(path_, 1).num_keys(), 0);
}

TEST_F(FileStoreTest, RecordThatAnnouncesAHugeLengthIsDamage) {
  { FileStore(path_).set("key", "value"); }
  std::string hostile = contents();
  hostile[16 + 7] = 0x10;  // 2^60 bytes.
  write(hostile);
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(path_, std::nullopt).status()));
}

TEST_F(FileStoreTest, FileOfAnotherProgramIsRefusedAndNotChanged) {
  write("a letter to my grandmother, quite long");
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(path_, std::nullopt).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(path_, 2).status()));
  EXPECT_EQ(contents(), "a letter to my grandmother, quite long");
}

TEST_F(FileStoreTest, ImpossiblePathsAreNamed) {
  const absl::Status missing = FileStore::open("/no/such/directory/file", std::nullopt).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), ::testing::HasSubstr("/no/such/directory/file"));
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(::testing::TempDir(), std::nullopt).status()));
  EXPECT_THROW(FileStore("/no/such/directory/file"), Error);
}

TEST_F(FileStoreTest, DamageUnderAnOpenStoreEndsItsCalls) {
  FileStore store(path_);
  store.set("key", "value");
  write(contents() + std::string(64, '\xff'));
  EXPECT_TRUE(absl::IsInvalidArgument(store.try_get("other", absl::Seconds(30)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.try_set("other", "")));
}

TEST_F(FileStoreTest, RemovedFileEndsAWaitWithUnavailable) {
  FileStore store(path_);
  store.set("key", "value");
  std::filesystem::remove(path_);
  EXPECT_TRUE(absl::IsUnavailable(store.try_get("other", absl::Seconds(30)).status()));
  EXPECT_TRUE(absl::IsUnavailable(store.try_set("other", "")));
}

TEST_F(FileStoreTest, TwoProcessesAddWithoutLosingAny) {
  constexpr int kAdds = 200;
  auto count = [this] {
    FileStore store(path_);
    for (int i = 0; i < kAdds; ++i) store.add("counter", 1);
    store.set(absl::StrCat("done/", getpid()), "");
    return 0;
  };
  const pid_t first = in_child(count), second = in_child(count);
  FileStore store(path_);
  store.wait({absl::StrCat("done/", first), absl::StrCat("done/", second)}, absl::Seconds(60));
  EXPECT_EQ(store.get("counter"), absl::StrCat(2 * kAdds));
  EXPECT_EQ(status_of(first), 0);
  EXPECT_EQ(status_of(second), 0);
}

TEST_F(FileStoreTest, StoreOpenedBeforeAForkWorksInBoth) {
  FileStore store(path_);
  store.set("before", "1");
  const pid_t child = in_child([&] {
    if (store.get("before") != "1") return 1;
    for (int i = 0; i < 100; ++i) store.add("counter", 1);
    return 0;
  });
  for (int i = 0; i < 100; ++i) store.add("counter", 1);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(store.get("counter"), "200");
}

TEST_F(FileStoreTest, ProcessKilledWithTheStoreOpenHarmsNobody) {
  FileStore store(path_, 2);
  const pid_t child = in_child([this] {
    FileStore other(path_, 2);
    other.set("key", "value");
    return raise(SIGKILL);  // Before the destructor.
  });
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_TRUE(WIFSIGNALED(status_of(child)));
  store.set("after", "1");
  EXPECT_EQ(store.get("after"), "1");
}

TEST_F(FileStoreTest, LastOfTheWorldRemovesTheFile) {
  auto first = std::make_unique<FileStore>(path_, 2);
  first->set("key", "value");
  // The first closes the file before the second opens it; its keys must be kept.
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
  auto second = std::make_unique<FileStore>(path_, 2);
  EXPECT_EQ(second->try_get("key", absl::ZeroDuration()).value_or("lost"), "value");
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, LeftoversOfAJobThatDiedAreForgotten) {
  const pid_t child = in_child([this] {
    FileStore store(path_, 2);
    store.set("key", "stale");
    return raise(SIGKILL);  // Before the destructor.
  });
  EXPECT_TRUE(WIFSIGNALED(status_of(child)));
  ASSERT_TRUE(std::filesystem::exists(path_));
  FileStore store(path_, 2);
  EXPECT_EQ(store.num_keys(), 0);
}

TEST_F(FileStoreTest, OpenGroupEmptiesAFileThatNobodyHasOpen) {
  { FileStore(path_).set("key", "stale"); }
  auto first = std::make_unique<FileStore>(path_, 0);
  EXPECT_EQ(first->num_keys(), 0);
  first->set("key", "fresh");
  auto second = std::make_unique<FileStore>(path_, 0);
  first.reset();
  EXPECT_EQ(second->get("key"), "fresh");
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// As PyTorch's FileStore: each job finds an empty store, and leaves no file.
TEST_F(FileStoreTest, JobsUseOnePathOneAfterTheOther) {
  for (int job = 0; job < 3; ++job) {
    auto first = std::make_unique<FileStore>(path_, 2);
    EXPECT_EQ(first->num_keys(), 0);
    EXPECT_EQ(first->queue_len("queue"), 0);
    first->set("key", absl::StrCat(job));
    first->queue_push("queue", "left over");
    FileStore second(path_, 2);
    EXPECT_EQ(second.get("key"), absl::StrCat(job));
    first.reset();
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, CloneKeepsTheMembershipAndIsNoSecondMember) {
  std::shared_ptr<Store> copy;
  {
    FileStore store(path_, 1);
    store.set("key", "value");
    copy = store.clone();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_EQ(copy->get("key"), "value");
  copy.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, QueueAndAppendedValueOutliveTheProcess) {
  const pid_t child = in_child([this] {
    FileStore store(path_);
    store.append("log", "one ");
    store.append("log", "two");
    store.queue_push("queue", "first");
    store.queue_push("queue", "second");
    return store.queue_pop("queue") == "first" ? 0 : 1;
  });
  EXPECT_EQ(status_of(child), 0);
  FileStore store(path_);
  EXPECT_EQ(store.get("log"), "one two");
  EXPECT_EQ(store.queue_len("queue"), 1);
  EXPECT_EQ(store.queue_pop("queue"), "second");
}

}  // namespace
}  // namespace gradwire::store
