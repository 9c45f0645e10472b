#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/bytes/span.h"

// Messages and deadlines for the tests of WorldP2p and ShmP2p.
namespace gradwire::collectives::cpu {

inline constexpr std::size_t kEager = std::size_t{64} << 10;

inline absl::Time in(absl::Duration duration) { return Clock::system().now() + duration; }
inline absl::Time timeout() { return in(absl::Seconds(60)); }

inline Span span(std::string& bytes) { return {bytes.data(), bytes.size()}; }

inline std::string bytes(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i + seed) * 2654435761u >> 13);
  return out;
}

}  // namespace gradwire::collectives::cpu
