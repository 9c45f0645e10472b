#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gradwire::lag {

// How long a stream waits before each kernel. The times are random, so that the order in which the streams
// run differs from run to run. The seed decides them, and the load of the machine adds to them.
struct Profile {
  uint64_t seed = 1;
  // The share of the kernels that start late by a time between zero and `usual`.
  double usual_share = 0.5;
  absl::Duration usual = absl::Microseconds(200);
  // The share of the kernels that start late by a time between zero and `rare`.
  double rare_share = 0.01;
  absl::Duration rare = absl::Milliseconds(3);

  // Every kernel starts as soon as it can.
  static Profile none() { return {.usual_share = 0, .rare_share = 0}; }
  // As the default, with another seed.
  static Profile seeded(uint64_t seed) { return {.seed = seed}; }
};

// Draws the times of one stream (splitmix64). Not thread-safe.
class Delays {
 public:
  Delays() = default;
  Delays(const Profile& profile, uint64_t stream)
      : profile_(profile), state_(profile.seed * 0x9e3779b97f4a7c15u + stream) {}

  absl::Duration next() {
    const double kind = uniform();
    if (kind < profile_.rare_share) return profile_.rare * uniform();
    if (kind < profile_.rare_share + profile_.usual_share) return profile_.usual * uniform();
    return absl::ZeroDuration();
  }

 private:
  // Returns a number in [0, 1).
  double uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
  }

  Profile profile_ = Profile::none();
  uint64_t state_ = 0;
};

}  // namespace gradwire::lag
