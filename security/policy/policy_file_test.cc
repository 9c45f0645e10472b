#include "gradwire/security/policy/policy_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/threads/repeated_task.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Subject kF{CalleeClass::kFunction, "f"};

class PolicyFileTest : public ::testing::Test {
 protected:
  ~PolicyFileTest() override { unlink(path_.c_str()); }

  void write(absl::string_view text) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  }
  // As editors do it: the file gets another inode.
  void replace(absl::string_view text) {
    const std::string next = path_ + ".next";
    std::ofstream(next) << text;
    ASSERT_EQ(chmod(next.c_str(), 0600), 0);
    ASSERT_EQ(rename(next.c_str(), path_.c_str()), 0);
  }
  // Opens the file. The test runs the examinations.
  void open() {
    auto file = PolicyFile::open(path_, [this](std::function<void()> examine) {
      examine_ = std::move(examine);
      return std::shared_ptr<void>();
    });
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }
  // The answer for a caller by the rules that are known.
  Decision ask(absl::string_view caller = "a") { return file_->check(caller, kF); }
  // The same after an examination.
  Decision ask_later(absl::string_view caller = "a") {
    examine_();
    return ask(caller);
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/policy-", getpid(), "-",
                                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::shared_ptr<PolicyFile> file_;
  std::function<void()> examine_;
};

TEST_F(PolicyFileTest, ChangedFileIsReadByTheNextExamination) {
  write("allow a function f");
  open();
  EXPECT_TRUE(ask().allowed);
  const uint64_t generation = file_->generation();
  // The same size, and perhaps the same time: only the content says that it has changed.
  write("allow b function f");
  // check() does not read the file.
  EXPECT_TRUE(ask().allowed);
  EXPECT_EQ(file_->generation(), generation);
  EXPECT_FALSE(ask_later().allowed);
  EXPECT_TRUE(ask("b").allowed);
  EXPECT_NE(file_->generation(), generation);
  replace("\ndeny * function f");
  EXPECT_TRUE(ask("b").allowed);
  EXPECT_EQ(ask_later("b").line, 2);
  EXPECT_FALSE(ask("b").allowed);
}

TEST_F(PolicyFileTest, ThreadOfItsOwnExaminesTheFile) {
  write("allow a function f");
  auto file = PolicyFile::open(path_, repeat({.name = "policy-file", .period = absl::Milliseconds(1)}));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->check("a", kF).allowed);
  replace("deny a function f");
  EXPECT_TRUE(eventually([&] { return !(*file)->check("a", kF).allowed; }));
}

// The times of files have a grain of some milliseconds, so the second version may have the stamp of the
// first.
TEST_F(PolicyFileTest, ChangesWithinTheGrainOfTimesAreSeen) {
  for (int i = 0; i < 50; ++i) {
    write("allow a function f");
    open();
    std::ofstream(path_) << "allow b function f";
    EXPECT_FALSE(ask_later().allowed) << i;
  }
}

TEST_F(PolicyFileTest, ABadFileKeepsTheOldRulesAndWarnsOnce) {
  write("allow a function f");
  open();
  replace("deny a function f\nallow a functoin g");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(ask_later().allowed);
  EXPECT_THAT(captured_lines("policy"), ElementsAre(AllOf(HasSubstr("the old policy stays in force"),
                                                          HasSubstr(path_ + ":2:9: unknown"))));
  // The next mistake is a new one.
  replace("allow a functoin g");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ask_later().allowed);
  EXPECT_TRUE(ask_later().allowed);
  EXPECT_THAT(captured_lines("policy"), ElementsAre(HasSubstr(path_ + ":1:9: unknown")));
  // When it is mended, it is used, also if the first version comes back.
  replace("deny a function f");
  EXPECT_FALSE(ask_later().allowed);
  replace("bad");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(ask_later().allowed);
  EXPECT_THAT(captured_lines("policy"), ElementsAre(HasSubstr(path_ + ":1:1: unknown word")));
  replace("allow a function f");
  EXPECT_TRUE(ask_later().allowed);
}

TEST_F(PolicyFileTest, AMissingOrUnprotectedFileKeepsTheOldRules) {
  write("allow a function f");
  open();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ask_later().allowed);
  EXPECT_TRUE(ask_later().allowed);
  EXPECT_THAT(captured_lines("policy"), ElementsAre(HasSubstr("cannot open the policy file " + path_)));
  write("deny a function f");
  ASSERT_EQ(chmod(path_.c_str(), 0620), 0);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ask_later().allowed);
  EXPECT_THAT(captured_lines("policy"), ElementsAre(HasSubstr("chmod go-w " + path_)));
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_FALSE(ask_later().allowed);
}

TEST_F(PolicyFileTest, AFileThatOthersCanWriteIsRefused) {
  for (const mode_t mode : {0620, 0602, 0666}) {
    write("allow a function f");
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    const absl::Status status = PolicyFile::open(path_).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(mode == 0620 ? "by its group" : "by all users"),
                                        HasSubstr("chmod go-w " + path_)));
  }
  for (const mode_t mode : {0600, 0644, 0444}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_TRUE(PolicyFile::open(path_).ok()) << mode;
  }
}

TEST_F(PolicyFileTest, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  write("allow a function f");
  ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  const absl::Status status = PolicyFile::open(path_).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("belongs to user 12345"), HasSubstr("run as root: chown 0 " + path_)));
}

TEST_F(PolicyFileTest, WhatCannotBeReadIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(PolicyFile::open(path_).status()));
  EXPECT_THAT(PolicyFile::open(path_).status().message(), HasSubstr("SecurityOptions::policy_file"));
  EXPECT_TRUE(absl::IsInvalidArgument(PolicyFile::open(::testing::TempDir()).status()));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(PolicyFile::open(path_).status().message(), HasSubstr("not a regular file"));
  unlink(path_.c_str());
  write(std::string(kMaxPolicyBytes + 1, '\n'));
  EXPECT_THAT(PolicyFile::open(path_).status().message(),
              HasSubstr("is too large: got more than 1048576 bytes"));
  write("allow a function");
  EXPECT_THAT(PolicyFile::open(path_).status().message(), HasSubstr(path_ + ":1:17: "));
}

TEST_F(PolicyFileTest, ThreadsAskWhileTheFileChanges) {
  write("allow * function f");
  open();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) {
        const Decision decision = ask(absl::StrCat("w", i));
        EXPECT_EQ(decision.line, decision.allowed ? 1 : 2);
      }
    });
  }
  for (int i = 1; i <= 50; ++i) {
    replace(i % 2 == 0 ? "allow * function f" : "\ndeny * function f");
    EXPECT_EQ(ask_later().allowed, i % 2 == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire::security
