#pragma once

// The version of Gradwire: MAJOR.MINOR.PATCH as in https://semver.org. docs/stability.md says what a change
// of each number means. All programs of a job should be built from the same version.

// Raised by a change that existing programs must adapt to.
#define GRADWIRE_VERSION_MAJOR 0
// Raised by a new feature; while the major version is 0, also by a change that existing programs must adapt
// to.
#define GRADWIRE_VERSION_MINOR 1
// Raised by a fix.
#define GRADWIRE_VERSION_PATCH 0

#define GRADWIRE_VERSION_TEXT_OF_(number) #number
#define GRADWIRE_VERSION_TEXT_(major, minor, patch) \
  GRADWIRE_VERSION_TEXT_OF_(major) "." GRADWIRE_VERSION_TEXT_OF_(minor) "." GRADWIRE_VERSION_TEXT_OF_(patch)

namespace gradwire {

// The version as text, for example "1.2.3".
inline constexpr char kVersion[] =
    GRADWIRE_VERSION_TEXT_(GRADWIRE_VERSION_MAJOR, GRADWIRE_VERSION_MINOR, GRADWIRE_VERSION_PATCH);

}  // namespace gradwire
