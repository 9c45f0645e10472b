#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradwire/base/process/process_identity.h"

namespace gradwire::store {

// Claim of a process on a rank of a group, as written into the store.
struct RankClaim {
  // The world size that the process expects.
  int world_size = 0;
  ProcessIdentity process;
  std::string host;
  // Random; different for each attempt of the process to join.
  uint64_t attempt = 0;

  // A claim of this process.
  static RankClaim make(int world_size);
  // Parses text(). Returns nullopt for malformed or oversized text.
  static std::optional<RankClaim> read(const std::string& text);

  std::string text() const;
  // "process 7 on host-a".
  std::string name() const;
  bool is_of_this_process() const;
  // Whether the process has certainly ended: it ran on this host and no longer exists. Hosts are identified
  // by their boot, because several hosts may have one name.
  bool has_ended() const;
};

}  // namespace gradwire::store
