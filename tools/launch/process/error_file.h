#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradwire::tools {

// The error file: the reason why a worker failed, which the worker leaves for the launcher in the file that
// TORCHELASTIC_ERROR_FILE names. It is JSON in torchelastic's format, which Python workers write too:
//   {"message": {"message": "...", "extraInfo": {"timestamp": "<seconds since 1970>", ...}}}
// Gradwire's workers add the code of the status as extraInfo.status and, for an error that came from another
// worker, that worker's name as extraInfo.worker.

// For workers. Atomically writes `status` to the file that TORCHELASTIC_ERROR_FILE names, if it is set, and
// replaces an existing file. Errors are ignored, because the program is already ending for another reason.
void write_error_file(const absl::Status& status);

// For workers. From now on an uncaught exception is written to the error file before the program ends as
// usual. Only the process that called this writes, not its forked children. Further calls have no effect.
void record_uncaught_exceptions();

// For the launcher: the contents of an error file.
struct ErrorRecord {
  // One line of at most kMaxErrorMessage bytes of UTF-8 without control characters.
  std::string message;
  std::optional<absl::Time> time;  // As the worker wrote it.
  // Whether the worker ended normally, but without leaving its group (base/process/last_words.h).
  bool left_its_group = false;
};
inline constexpr size_t kMaxErrorMessage = 500;

// Reads an error file. NotFound: the file does not exist. InvalidArgument, which names the cause: the file is
// malformed.
absl::StatusOr<ErrorRecord> read_error_file(const std::string& path);

// Makes `text` safe for one line of a terminal. Each run of line ends and other control characters becomes
// one space. Text longer than `size` bytes is cut and ends with "...".
std::string clean_line(absl::string_view text, size_t size);

}  // namespace gradwire::tools
