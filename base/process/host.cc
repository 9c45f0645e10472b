#include "gradwire/base/process/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxBootId = 64;

// Returns "" if the system has no boot id, or one of unexpected form. The id becomes a part of addresses,
// so it must not contain their separators.
std::string read_boot_id() {
  std::string line;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), line);
  const bool plain = line.size() <= kMaxBootId && std::all_of(line.begin(), line.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
                     });
  return plain ? line : std::string();
}

// Two processes share their network exactly if they run on the same boot of a host and in the same network
// namespace. The inode number identifies the namespace on the host.
std::string find_network_id() {
  struct stat network {};
  if (boot_id().empty() || ::stat("/proc/self/ns/net", &network) != 0) return "";
  return absl::StrCat(boot_id(), "-", network.st_ino);
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

const std::string& boot_id() {
  static const auto* const id = new std::string(read_boot_id());
  return *id;
}

const std::string& network_id() {
  static const auto* const id = new std::string(find_network_id());
  return *id;
}

}  // namespace gradwire
