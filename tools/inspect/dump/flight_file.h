#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/rpc/core/call_context.h"

namespace gradwire::tools {

// Identifies the work that made a call.
struct FlightParent {
  enum class Kind { kNone, kCall, kPass, kTrace };
  Kind kind = Kind::kNone;
  // For kTrace: the two halves of the trace id.
  uint64_t worker = 0;
  uint64_t number = 0;
};

// A call as one of its ends has recorded it. Times are those of the file (FlightFile::clock_ns).
struct FlightCall {
  rpc::CallIdentity identity;
  bool made = false;  // By the worker of the file; else served by it.
  uint64_t peer = 0;
  std::string name;
  FlightParent parent;
  int64_t began = 0;
  int64_t started = 0;  // 0: not known.
  int64_t ended = 0;    // 0: open.
  std::string code;     // How it has ended.
  // Where a call was that was open when the file was written; empty for others, and in the file of a crash.
  std::string state;
  int64_t deadline = 0;  // 0: none, or not known.

  bool open() const { return ended == 0; }
};

struct FlightPass {
  uint64_t root = 0;
  uint64_t number = 0;
  FlightParent parent;
  int64_t began = 0;
  int64_t ended = 0;
  std::string code;
};

struct FlightCollective {
  int64_t sequence = -1;  // -1: a message between two ranks.
  std::string operation;
  std::string state;
  std::string code;
  int64_t began = 0;
  int64_t ended = 0;
};

// The content of one file of flight records. Everything in it may be wrong: texts have at most kMaxText
// bytes, and only printable ASCII characters.
struct FlightFile {
  static constexpr std::size_t kMaxText = 1024;

  std::string path;
  bool is_group = false;  // It is the file of a process group; else of an agent.
  std::string title;      // The group's, or the worker's name.
  uint64_t incarnation = 0;
  std::string reason;
  bool crash = false;
  int64_t process = 0;
  std::string boot;  // The boot of the host, whose processes have one clock; empty if it is not known.
  // The same moment on the wall clock and on the clock of the other times.
  int64_t wall_ns = 0;
  int64_t clock_ns = 0;
  // The number of calls and passes, or operations, that were recorded, and of those that are kept. 0: not
  // known.
  uint64_t recorded = 0;
  uint64_t capacity = 0;
  std::map<uint64_t, std::string> workers;  // Names by incarnation.
  std::vector<FlightCall> calls;            // One for each identity and side.
  std::vector<FlightPass> passes;
  std::vector<FlightCollective> collectives;
  // Lines that could not be read, and whether the last line is missing.
  std::size_t bad_lines = 0;
  bool truncated = true;
};

// Reads the text of a file. Lines that are malformed are counted and skipped. Errors: InvalidArgument if the
// first line is not the header of a flight record of a known version.
absl::StatusOr<FlightFile> parse_flight_file(absl::string_view text);

// Reads a file of at most 256 MiB. Errors, with the path: Unavailable (it cannot be opened), InvalidArgument
// (it is not a regular file, is too large, or is not a flight record).
absl::StatusOr<FlightFile> read_flight_file(const std::string& path);

// The files *.jsonl in a directory and in the folders below it, at most three deep; sorted; at most 65,536.
// Folders below it that cannot be read are skipped.
// Errors as above.
absl::StatusOr<std::vector<std::string>> find_flight_files(const std::string& directory);

// Reads the flight records at these paths: files, and all records in directories. Appends a line to `errors`
// for each path that cannot be read.
std::vector<FlightFile> read_flight_paths(const std::vector<std::string>& paths, std::string& errors);

}  // namespace gradwire::tools
