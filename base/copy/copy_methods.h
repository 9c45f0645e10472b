#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// The methods to copy memory. Which one is the fastest depends on the processor, on the size, and on where
// the target is cached.
enum class CopyMethod : uint8_t {
  kMemcpy,  // The C library.
  kString,  // The processor's string instruction.
  kStream,  // Stores that bypass the caches: the target is not read first, and not fetched from other cores.
};
inline constexpr std::size_t kCopyMethods = 3;

const char* to_string(CopyMethod method);
// Whether this processor has the method, and this build may use it.
bool is_supported(CopyMethod method);
// Copies `bytes` bytes, as memcpy(). Null pointers are allowed if `bytes` is 0. An unsupported method is
// replaced by kMemcpy. When the function returns, a release store publishes the copy to other threads and
// processes, whatever the method.
void copy_with(CopyMethod method, void* to, const void* from, std::size_t bytes);

}  // namespace gradwire
