#include "gradwire/base/testing/test_needs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::test_needs {

bool must_have(absl::string_view resource) {
  const char* list = std::getenv("GRADWIRE_TEST_MUST_HAVE");
  if (list == nullptr) return false;
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), resource) != names.end();
}

absl::Status pseudo_terminals() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  const bool good = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0;
  const int error = errno;
  if (terminal >= 0) close(terminal);
  return good ? absl::OkStatus() : absl::ErrnoToStatus(error, "cannot create a pseudo terminal");
}

std::string missing(absl::string_view resource, const absl::Status& why) {
  return absl::StrCat("this test needs ", resource, ": ", why.message());
}

}  // namespace gradwire::test_needs
