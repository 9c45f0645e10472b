#include "gradwire/base/copy/copy_methods.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace gradwire {
namespace {

// ThreadSanitizer does not see what the string instruction and streaming stores access.
#if defined(__SANITIZE_THREAD__)
constexpr bool kOnlyMemcpy = true;
#elif defined(__has_feature)
constexpr bool kOnlyMemcpy = __has_feature(thread_sanitizer);
#else
constexpr bool kOnlyMemcpy = false;
#endif

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;

bool has_fast_string_copy() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 9)) != 0;  // ERMS
}

// Whole lines of the target are streamed. The processor writes a line to memory in one piece if all of its
// bytes are stored in a row, so parts of lines at both ends are copied as usual.
void stream(char* to, const char* from, std::size_t bytes) {
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine;
  auto* line = reinterpret_cast<__m128i*>(to + head);
  const auto* source = reinterpret_cast<const __m128i*>(from + head);
  for (std::size_t i = 0; i < lines; ++i, line += 4, source += 4) {
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  const std::size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, bytes - done);
  // A release store does not order streamed stores before it.
  _mm_sfence();
}

#endif

}  // namespace

const char* to_string(CopyMethod method) {
  switch (method) {
    case CopyMethod::kMemcpy:
      return "memcpy";
    case CopyMethod::kString:
      return "string";
    case CopyMethod::kStream:
      return "stream";
  }
  return "unknown";
}

bool is_supported(CopyMethod method) {
  if (kOnlyMemcpy) return method == CopyMethod::kMemcpy;
#if defined(__x86_64__)
  static const bool fast_string_copy = has_fast_string_copy();
  return method != CopyMethod::kString || fast_string_copy;
#else
  return method == CopyMethod::kMemcpy;
#endif
}

void copy_with(CopyMethod method, void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (method == CopyMethod::kString) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
  if (method == CopyMethod::kStream && bytes > 0) {
    stream(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    return;
  }
#endif
  // memcpy() must not get null pointers.
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace gradwire
