#pragma once

#include <cstddef>
#include <string>

namespace gradwire {

// How the launcher's --trace has this process recorded (docs/observability.md). The environment says it:
//   GRADWIRE_TRACE_DIR      The directory of all flight records of this process, in place of every other one.
//                           Each source also writes its record when it ends or when the process ends.
//   GRADWIRE_TRACE_RECORDS  The least number of records that an agent keeps. A process group keeps a quarter.
struct TraceSettings {
  // The most records that the variable can ask for.
  static constexpr std::size_t kMostRecords = std::size_t{1} << 19;
  // The default, and the part of it that a group keeps.
  static constexpr std::size_t kRecords = std::size_t{1} << 15;
  static constexpr std::size_t kGroupPart = 4;

  // Empty: the process is not traced, and the rings stay as they are.
  std::string directory;
  std::size_t records = 0;

  bool on() const { return !directory.empty(); }
  // The sizes of the rings of an agent and of a process group that would have `wanted` records without a
  // trace. 0 stays 0.
  std::size_t agent_records(std::size_t wanted) const;
  std::size_t group_records(std::size_t wanted) const;
};

// Reads the two variables; either may be null. A directory of 4,096 bytes or more counts as not set. A number
// that is malformed counts as the default, and others are brought into the range 1 to kMostRecords.
TraceSettings parse_trace_settings(const char* directory, const char* records);

// The settings of this process. The environment is read once. Thread-safe.
const TraceSettings& trace_settings();

}  // namespace gradwire
