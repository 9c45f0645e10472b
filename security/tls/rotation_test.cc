#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/handshake_fixture.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A worker whose files change, and a peer that accepts the old and the new authority.
class Rotation : public ::testing::Test {
 protected:
  void SetUp() override {
    both_ = old_.pem() + new_.pem();
    rotated_ = make(files_, &examine_);
    peer_ = make(old_.write(old_.issue({.uris = {"gradwire://job/peer"}}), both_));
  }

  // `examine`: gets the examination of the files, which the test runs.
  CredentialsPtr make(const CertificateFiles& files, std::function<void()>* examine = nullptr) {
    absl::StatusOr<CredentialsPtr> made =
        make_certificate_credentials(files, [examine](std::function<void()> task) {
          if (examine != nullptr) *examine = std::move(task);
          return std::shared_ptr<void>();
        });
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  // Returns which authority signed the certificate that a new connection shows: "old" or "new". The strict
  // peer accepts one of them.
  std::string authority_in_use(bool accepted = false) {
    std::string result;
    for (const auto& [name, authority] : {std::pair("old", &old_), std::pair("new", &new_)}) {
      CertificateFiles files =
          old_.write(authority->issue({.uris = {"gradwire://job/peer"}}), authority->pem());
      // Its own certificate must fit the rotated worker's authority file, which has both.
      const CredentialsPtr strict = make(files);
      Ends ends(accepted ? strict : rotated_, accepted ? rotated_ : strict);
      ends.run();
      if (ends.done()) result += name;
    }
    return result;
  }

  void replace_all(const TestAuthority::Pem& pem) {
    replace_file(files_.certificate, pem.certificate);
    replace_file(files_.key, pem.key);
  }

  TestAuthority old_{"Old authority"};
  TestAuthority new_{"New authority"};
  std::string both_;
  CertificateFiles files_ = old_.write(old_.issue({.uris = {"gradwire://job/a"}}), old_.pem() + new_.pem());
  CredentialsPtr rotated_;
  // Examines the files of `rotated_`.
  std::function<void()> examine_;
  CredentialsPtr peer_;
};

TEST_F(Rotation, NewConnectionsUseTheNewFiles) {
  EXPECT_EQ(authority_in_use(), "old");
  Ends existing(rotated_, peer_);
  existing.run();
  ASSERT_TRUE(existing.done());

  replace_all(new_.issue({.uris = {"gradwire://job/a"}}));
  // A connection that begins does not read the files.
  EXPECT_EQ(authority_in_use(), "old");
  examine_();
  EXPECT_EQ(authority_in_use(), "new");
  EXPECT_EQ(authority_in_use(true), "new");

  // The connection of before goes on.
  const Streams streams(existing);
  std::string text = "hello";
  const iovec piece{text.data(), text.size()};
  ASSERT_EQ(streams.client->write({&piece, 1}), 5);
  std::string read(5, '\0');
  const iovec place{read.data(), read.size()};
  EXPECT_EQ(streams.server->read({&place, 1}), 5);
  EXPECT_EQ(read, "hello");
}

TEST_F(Rotation, ThreadOfItsOwnExaminesTheFiles) {
  absl::StatusOr<CredentialsPtr> made =
      make_certificate_credentials(files_, repeat({.name = "certificates", .period = absl::Milliseconds(1)}));
  ASSERT_TRUE(made.ok()) << made.status();
  rotated_ = *std::move(made);
  EXPECT_EQ(authority_in_use(), "old");
  ::testing::internal::CaptureStderr();
  replace_all(new_.issue({.uris = {"gradwire://job/a"}}));
  EXPECT_TRUE(eventually([&] { return authority_in_use() == "new"; }));
  // Between the two files a warning may be due.
  ::testing::internal::GetCapturedStderr();
}

TEST_F(Rotation, BadFilesLeaveThePreviousOnesInUseAndWarnOnce) {
  const TestAuthority::Pem next = new_.issue({.uris = {"gradwire://job/a"}});
  ::testing::internal::CaptureStderr();
  // 1. The certificate is new, the key is not yet.
  replace_file(files_.certificate, next.certificate);
  for (int i = 0; i < 3; ++i) {
    examine_();
    EXPECT_EQ(authority_in_use(), "old");
  }
  const std::vector<std::string> mismatch = captured_lines("are not used");
  ASSERT_EQ(mismatch.size(), 1);
  EXPECT_THAT(mismatch[0], AllOf(HasSubstr("the key file " + files_.key + " does not fit"),
                                 HasSubstr("new connections use the previous ones")));

  // 2. Half of the key is written.
  ::testing::internal::CaptureStderr();
  replace_file(files_.key, next.key.substr(0, next.key.size() / 2));
  for (int i = 0; i < 3; ++i) {
    examine_();
    EXPECT_EQ(authority_in_use(), "old");
  }
  const std::vector<std::string> half = captured_lines("are not used");
  ASSERT_EQ(half.size(), 1);
  EXPECT_THAT(half[0], HasSubstr("the key file " + files_.key + " has no private key"));

  // 3. All of it.
  ::testing::internal::CaptureStderr();
  replace_file(files_.key, next.key);
  examine_();
  EXPECT_EQ(authority_in_use(), "new");
  EXPECT_EQ(captured_lines("are not used").size(), 0);
}

TEST_F(Rotation, CertificateOfAnotherWorkerIsNotUsed) {
  ::testing::internal::CaptureStderr();
  replace_all(new_.issue({.uris = {"gradwire://job/b"}}));
  examine_();
  EXPECT_EQ(authority_in_use(), "old");
  const std::vector<std::string> lines = captured_lines("are not used");
  ASSERT_EQ(lines.size(), 1);
  EXPECT_THAT(lines[0],
              HasSubstr("names another worker: got \"gradwire://job/b\", expected \"gradwire://job/a\""));
}

TEST_F(Rotation, ExpiredAndMissingFilesAreNotUsed) {
  const std::string certificate = read_text(files_.certificate);
  ::testing::internal::CaptureStderr();
  replace_all(new_.issue({.uris = {"gradwire://job/a"}, .from = -absl::Hours(2), .until = -absl::Hours(1)}));
  examine_();
  EXPECT_EQ(authority_in_use(), "old");
  ASSERT_EQ(std::remove(files_.authority.c_str()), 0);
  examine_();
  EXPECT_EQ(authority_in_use(), "old");
  const std::vector<std::string> lines = captured_lines("are not used");
  ASSERT_EQ(lines.size(), 2);
  EXPECT_THAT(lines[0], HasSubstr("has expired"));
  EXPECT_THAT(lines[1], HasSubstr("cannot open the authority file " + files_.authority));
}

TEST_F(Rotation, ConnectionsOfSeveralThreadsBeginDuringRotations) {
  const TestAuthority::Pem next = new_.issue({.uris = {"gradwire://job/a"}});
  const TestAuthority::Pem first = {.certificate = read_text(files_.certificate),
                                    .key = read_text(files_.key)};
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  const auto connect = [&] {
    while (!stop) {
      Ends ends(rotated_, peer_);
      ends.run();
      if (!ends.done()) ++failed;
    }
  };
  ::testing::internal::CaptureStderr();
  std::thread one(connect);
  std::thread other(connect);
  for (int i = 0; i < 10; ++i) {
    replace_all(i % 2 == 0 ? next : first);
    examine_();
    Ends ends(rotated_, peer_);
    ends.run();
    EXPECT_TRUE(ends.done());
  }
  stop = true;
  one.join();
  other.join();
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(failed, 0);
}

// As Kubernetes does: the files are links into a folder behind a link, and only that link changes.
TEST_F(Rotation, FilesBehindAChangedLinkAreUsed) {
  const std::string link = files_.certificate + ".link";
  const std::string key_link = files_.key + ".link";
  ASSERT_EQ(::symlink(files_.certificate.c_str(), link.c_str()), 0);
  ASSERT_EQ(::symlink(files_.key.c_str(), key_link.c_str()), 0);
  rotated_ = make({.certificate = link, .key = key_link, .authority = files_.authority}, &examine_);
  EXPECT_EQ(authority_in_use(), "old");
  const CertificateFiles next = new_.worker("job", "a");
  ASSERT_EQ(::symlink(next.certificate.c_str(), (link + "2").c_str()), 0);
  ASSERT_EQ(::symlink(next.key.c_str(), (key_link + "2").c_str()), 0);
  ASSERT_EQ(std::rename((link + "2").c_str(), link.c_str()), 0);
  ASSERT_EQ(std::rename((key_link + "2").c_str(), key_link.c_str()), 0);
  examine_();
  EXPECT_EQ(authority_in_use(), "new");
}

}  // namespace
}  // namespace gradwire::security
