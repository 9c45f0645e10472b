#pragma once

namespace chaos {

// Whether this program runs under a sanitizer. Then it is several times slower, and the sanitizer uses memory
// of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// Whether the sanitizer may have a symbolizer process. ThreadSanitizer starts one, with two pipes, when it
// first checks whether to suppress a report (base/testing). The process runs until this program
// ends.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kMayHaveSymbolizer = true;
#elif defined(__has_feature)
inline constexpr bool kMayHaveSymbolizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kMayHaveSymbolizer = false;
#endif

}  // namespace chaos
