#pragma once

namespace gradwire {

// Of all of Gradwire: MAJOR.MINOR.PATCH as in https://semver.org. Programs of one job should be built from
// one version.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace gradwire
