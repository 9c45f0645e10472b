#pragma once

namespace chaos {

// Whether this program runs under a sanitizer: several times slower, and with memory of the sanitizer's own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// ThreadSanitizer starts a process with two pipes that lives on, to name functions, when it first asks
// whether a report is to be suppressed (base/tsan_suppressions).
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kMayHaveSymbolizer = true;
#elif defined(__has_feature)
inline constexpr bool kMayHaveSymbolizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kMayHaveSymbolizer = false;
#endif

}  // namespace chaos
