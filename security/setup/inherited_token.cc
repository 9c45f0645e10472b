#include "gradwire/security/setup/inherited_token.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/checked_file.h"

namespace gradwire::security {
namespace {

constexpr std::size_t kMaxBytes = 4096;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

}  // namespace

absl::StatusOr<Descriptor> token_descriptor(const Secret& token) {
  Descriptor file =
      Descriptor::from([&] { return ::memfd_create("gradwire-token", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!file.valid()) return system_status("cannot create a memory file for the token", errno);
  const absl::string_view bytes = token.reveal();
  const NoFileSizeSignal no_signal;
  // A memory file takes all bytes at once.
  if (::fchmod(file.get(), 0400) != 0 ||
      ::pwrite(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return system_status("cannot write the token to a memory file", errno);
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_status("cannot seal the memory file of the token", errno);
  return file;
}

absl::StatusOr<Secret> InheritedToken::read() {
  MutexLock lock(mutex_);
  if (!token_) token_ = take();
  return *token_;
}

absl::StatusOr<Secret> InheritedToken::take() const {
  const char* const value = std::getenv(variable_.c_str());
  if (value == nullptr || *value == '\0') return Secret();
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no token from the launcher: ", variable_, "=", value, " ", why,
        "; start the program by the launcher without a program in between that closes or changes "
        "descriptors, or give the token in a file: GRADWIRE_TOKEN_FILE"));
  };
  int number = -1;
  if (!absl::SimpleAtoi(value, &number) || number < 0) return wrong("is not the number of a descriptor");
  // The number may belong to another file if something between the launcher and this program has closed the
  // descriptor. Such a file is neither read as a token nor closed.
  const int seals = ::fcntl(number, F_GET_SEALS);
  if (seals < 0 && errno == EBADF) return wrong("is not open");
  if (seals < 0 || (seals & kSeals) != kSeals) return wrong("is not a sealed memory file");
  const absl::StatusOr<Secret> token = read_from_start(number, kMaxBytes);
  if (!token.ok()) return wrong(absl::StrCat("cannot be read: ", token.status().message()));
  if (token->empty() || token->size() > kMaxBytes)
    return wrong(absl::StrCat("has no token, or one of more than ", kMaxBytes, " bytes"));
  ::close(number);
  ::unsetenv(variable_.c_str());
  return token;
}

}  // namespace gradwire::security
