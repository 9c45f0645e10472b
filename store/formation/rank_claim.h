#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradwire/base/process/process_identity.h"

namespace gradwire::store {

// What a process writes into the store to come to a group as one of its ranks.
struct RankClaim {
  // What it says.
  int world_size = 0;
  ProcessIdentity process;
  std::string host;
  // Another one each time that the process comes.
  uint64_t attempt = 0;

  // This process's.
  static RankClaim make(int world_size);
  // None for what is no claim; bounded.
  static std::optional<RankClaim> read(const std::string& text);

  std::string text() const;
  // "process 7 on host-a".
  std::string name() const;
  bool is_of_this_process() const;
  // Whether it is sure that the process has ended: it was one of this host, which does not have it any more.
  // Hosts are told apart by how they were started: several may have one name.
  bool has_ended() const;
};

}  // namespace gradwire::store
