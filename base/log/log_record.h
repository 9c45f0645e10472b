#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/log/log_level.h"

namespace gradwire {

// The form of the lines in the log.
enum class LogFormat {
  kText,  // "I 12:04:31.870 4711 gradwire[ps]: message", for people
  kJson,  // One JSON object a line, for programs
};

// How far a long piece of work is.
struct ProgressState {
  // The text says what the work waits for or does, without the duration: "waiting for rank 3 of 4 to join".
  std::string text;
  // The number of finished parts and of all parts, if they are known.
  std::optional<int64_t> done = std::nullopt;
  std::optional<int64_t> total = std::nullopt;
};

// One record of the log.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  absl::Time time;  // Time of day.
  int64_t pid = 0;
  std::optional<int> rank;     // The rank of the process in its job, if it is known.
  absl::string_view worker;    // The worker that the line is about; empty if it is not known.
  const char* file = nullptr;  // The place in the source that wrote the record; null if it is not known.
  int source_line = 0;
  absl::string_view message;
  // Set in a record of progress; `message` is then not used.
  const ProgressState* progress = nullptr;
  absl::Duration elapsed;  // With `progress`: how long the work has lasted.
  bool finished = false;   // With `progress`: whether this is the last record of the work.
};

// A message is cut after this many bytes.
inline constexpr std::size_t kMaxLogMessage = 16384;

// Returns the record as one line, with its newline. No text in a record can end the line, move the cursor of
// a terminal or be invalid UTF-8: messages contain text of other processes. In kText such characters are
// escaped as in C (`\n`, `\x1b`), in kJson as JSON does it; invalid UTF-8 becomes U+FFFD there.
//
// The fields in kJson, in this order:
//   time      RFC 3339, in UTC, with microseconds
//   level     "debug", "info", "warning", "error", or "progress"
//   pid       number
//   rank      number; left out if it is not known
//   worker    text; left out if it is not known
//   message   text
//   source    "rpc/link/link.cc:36"; left out if it is not known
//   elapsed_s, done, total, finished    only with "progress"; `done` and `total` only if they are known
std::string format_record(const LogRecord& record, LogFormat format);

// Returns `text` as kText has it: with escaped control characters, and as valid UTF-8. At most `max_bytes` of
// `text` are used; the number of the others is added.
std::string printable(absl::string_view text, std::size_t max_bytes = kMaxLogMessage);

// "waiting for rank 3 (12s)"
std::string progress_text(const ProgressState& state, absl::Duration elapsed);

}  // namespace gradwire
