#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire {

// Identifies one process among all processes of its host, past and present. A process id can be reused, but
// then the start time differs.
struct ProcessIdentity {
  // The scope of the id: the host's boot and the namespace of process ids. Empty: unknown.
  std::string space;
  int64_t id = 0;
  // Start time, in clock ticks since the boot.
  uint64_t started = 0;
};

ProcessIdentity this_process();

// Converts to and from one line of text. decode_process() returns nullopt for malformed text and limits the
// length.
std::string encode(const ProcessIdentity& process);
std::optional<ProcessIdentity> decode_process(absl::string_view text);

// Returns true only if the process has certainly ended. A process in another `space` is never reported as
// ended.
bool has_ended(const ProcessIdentity& process);

}  // namespace gradwire
