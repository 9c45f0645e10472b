#pragma once

namespace gradwire::simulation {

// True in a build with a sanitizer. Such a build is many times slower and detects another kind of mistake
// (memory errors and data races), so it runs far fewer schedules.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kInstrumented = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kInstrumented = true;
#else
inline constexpr bool kInstrumented = false;
#endif
#else
inline constexpr bool kInstrumented = false;
#endif

}  // namespace gradwire::simulation
