#include "gradwire/security/token/random_bytes.h"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>
#include <exception>

namespace gradwire::security {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  ssize_t got;
  do {
    got = ::getrandom(bytes.data(), count, 0);
  } while (got < 0 && errno == EINTR);
  // The system gives up to 256 bytes at once. Guessable bytes would be worse than the end of the process.
  if (got != static_cast<ssize_t>(count)) std::terminate();
  return bytes;
}

}  // namespace gradwire::security
