#include "gradwire/transport/shm/memory/copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradwire::transport {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kStringCopyFrom = std::size_t{1} << 20;

bool has_fast_string_copy() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 9)) != 0;  // ERMS
}

const bool kFastStringCopy = has_fast_string_copy();

#endif

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kStringCopyFrom && kFastStringCopy) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace gradwire::transport
