#include "gradwire/tests/launch/security/protection.h"

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::tests {

std::vector<std::string> processes_that_show(const std::string& text) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    if (!std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]))) continue;
    for (const char* file : {"cmdline", "environ"}) {
      const std::string path = (entry.path() / file).string();
      std::stringstream content;
      content << std::ifstream(path).rdbuf();
      if (content.str().find(text) != std::string::npos) found.push_back(path);
    }
  }
  return found;
}

absl::Status try_store(int port, const SecurityOptions& security) {
  return store::TcpStore::open("127.0.0.1", port, {.timeout = absl::Seconds(60), .security = security})
      .status();
}

std::string token_file(const std::string& name, const std::string& token) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << token << "\n";
  std::filesystem::permissions(path,
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return path;
}

}  // namespace gradwire::tests
