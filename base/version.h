#pragma once

namespace gradwire {

// The version of Gradwire: MAJOR.MINOR.PATCH as in https://semver.org. All programs of a job should be built
// from the same version.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace gradwire
