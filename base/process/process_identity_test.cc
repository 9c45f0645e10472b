#include "gradwire/base/process/process_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace gradwire {
namespace {

TEST(ProcessIdentity, OwnProcessRuns) {
  const ProcessIdentity own = this_process();
  EXPECT_EQ(own.id, ::getpid());
  EXPECT_NE(own.started, 0U);
  EXPECT_FALSE(has_ended(own));
}

TEST(ProcessIdentity, KilledProcessHasEndedBeforeAndAfterItIsReaped) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  ProcessIdentity identity = this_process();
  identity.id = child;
  identity.started = 0;
  EXPECT_FALSE(has_ended(identity));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(identity));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(identity));
}

TEST(ProcessIdentity, IdUsedAgainIsAnotherProcess) {
  ProcessIdentity other = this_process();
  other.started += 1;
  EXPECT_TRUE(has_ended(other));
}

TEST(ProcessIdentity, TravelsAsText) {
  const ProcessIdentity own = this_process();
  const auto back = decode_process(encode(own));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->space, own.space);
  EXPECT_EQ(back->id, own.id);
  EXPECT_EQ(back->started, own.started);
  EXPECT_EQ(decode_process(encode({.id = 5}))->space, "");
  for (const std::string& text :
       {std::string(), std::string("a 1"), std::string("a b 1"), std::string("a 1 -1"),
        std::string("\x02 1 1"), std::string(" 1 1"), std::string(1000, 'a') + " 1 1"}) {
    EXPECT_FALSE(decode_process(text).has_value()) << text.substr(0, 20);
  }
}

TEST(ProcessIdentity, ProcessInAnotherSpaceIsNeverReportedAsEnded) {
  ProcessIdentity other = this_process();
  other.id = 1 << 30;
  other.space = "elsewhere";
  EXPECT_FALSE(has_ended(other));
  other.space.clear();
  EXPECT_FALSE(has_ended(other));
}

}  // namespace
}  // namespace gradwire
