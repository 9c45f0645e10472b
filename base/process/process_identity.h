#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire {

// One process as others on its host can recognise it: process ids are used again, with another time of start.
struct ProcessIdentity {
  // Where the id means what it says: this start of the host, and the namespace of ids. Empty: unknown.
  std::string space;
  int64_t id = 0;
  // In ticks since the host was started.
  uint64_t started = 0;
};

ProcessIdentity this_process();

// One line of text. None for what is malformed; bounded.
std::string encode(const ProcessIdentity& process);
std::optional<ProcessIdentity> decode_process(absl::string_view text);

// True only when it is sure that the process has ended; one in another place is never known to have.
bool has_ended(const ProcessIdentity& process);

}  // namespace gradwire
