#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// For tests, by root: a child process of another user, which does what a test asks it for. It is made by
// fork(), so it must be made before this process has threads. It ends with this object. Not thread-safe.
//
//   GRADWIRE_NEEDS("root", OtherUser::available());
//   OtherUser other([](const std::string& path) { return readable(path) ? "read" : "refused"; });
//   EXPECT_EQ(other.ask("/etc/shadow"), "refused");
class OtherUser {
 public:
  // The user and group "nobody", without further groups.
  static constexpr uid_t kUser = 65534;
  // Runs in the child process for each ask(), and may keep state there.
  using Body = std::function<std::string(const std::string& input)>;

  // OK if this process may become another user.
  static absl::Status available();

  explicit OtherUser(Body body, uid_t user = kUser);
  // Waits for the end of the process.
  ~OtherUser();
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  // Runs the body in the process, and returns what it returned. Empty, with a failed expectation, if the
  // process has ended.
  std::string ask(const std::string& input = "");
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  Descriptor socket_;
};

}  // namespace gradwire
