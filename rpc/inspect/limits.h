#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// Bounds of proto/inspect.proto.
inline constexpr uint32_t kDefaultInspected = 64;
inline constexpr uint32_t kMostInspected = 1024;
// The number of tables and counters is fixed, so they have no number in a request.
inline constexpr int kMostInspectedNumbers = 256;
// The names of the statistics that count calls by their time begin so; the number of the bucket follows.
inline constexpr char kCallBucket[] = "call_bucket_";
inline constexpr std::size_t kMaxInspectedName = 256;
inline constexpr std::size_t kMaxInspectionBytes = std::size_t{1} << 20;
// FlightPart.lines.
inline constexpr std::size_t kMaxFlightBytes = std::size_t{768} << 10;
// The most entries of a table, or records of a ring, that one reading visits: it holds the lock of the table,
// and delays other messages, for a short time.
inline constexpr std::size_t kMostVisited = 20'000;

// The effective InspectRequest.most.
inline uint32_t entries_of(uint32_t most) {
  return most == 0 ? kDefaultInspected : std::min(most, kMostInspected);
}

inline absl::string_view cut_name(absl::string_view name) { return name.substr(0, kMaxInspectedName); }

}  // namespace gradwire::rpc
