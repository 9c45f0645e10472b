#include "gradwire/transport/shm/shm_address.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/random_id.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kMaxPart = 64;

bool is_part(absl::string_view part) {
  return !part.empty() && part.size() <= kMaxPart && std::all_of(part.begin(), part.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
  });
}

}  // namespace

std::string ShmAddress::to_string() const { return absl::StrCat("shm:", boot_id, ":", name); }

bool ShmAddress::is_of_this_host() const { return boot_id == gradwire::boot_id(); }

absl::StatusOr<ShmAddress> parse_shm_address(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() != 3 || parts[0] != "shm" || !is_part(parts[1]) || !is_part(parts[2])) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed address: got \"", text, "\", expected shm:<boot id>:<name>"));
  }
  return ShmAddress{std::string(parts[1]), std::string(parts[2])};
}

absl::StatusOr<ShmAddress> new_shm_address() {
  if (boot_id().empty()) {
    return absl::UnavailableError(
        "cannot identify this host: /proc/sys/kernel/random/boot_id is not readable");
  }
  return ShmAddress{boot_id(), absl::StrCat(absl::Hex(random_id(), absl::kZeroPad16))};
}

UnixAddress abstract_address(const ShmAddress& address) {
  UnixAddress result;
  result.storage.sun_family = AF_UNIX;
  // With a leading zero byte the name is in the abstract namespace: it is not in the file system and
  // disappears with the socket.
  const std::string name = absl::StrCat("gradwire-", address.name);
  std::memcpy(result.storage.sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

absl::StatusOr<Descriptor> listen_at(const ShmAddress& address) {
  Descriptor socket =
      Descriptor::from([&] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  const UnixAddress at = abstract_address(address);
  if (!socket.valid() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return system_status(absl::StrCat("cannot listen on ", address.to_string()), errno);
  }
  return socket;
}

}  // namespace gradwire::transport
