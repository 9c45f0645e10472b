#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradwire::tools {

// What a worker died of, left for the launcher in the file that TORCHELASTIC_ERROR_FILE names. JSON in
// torchelastic's shape, which Python workers write too:
//   {"message": {"message": "...", "extraInfo": {"timestamp": "<seconds since 1970>", ...}}}
// Ours has the status's code as extraInfo.status and, of an error that came from another worker, that
// worker's name as extraInfo.worker.

// Worker's side. Writes `status` to the file that TORCHELASTIC_ERROR_FILE names, if it names one, in one
// step, over what is there. Failures are kept quiet: the program is ending for a reason of its own.
void write_error_file(const absl::Status& status);

// From now on an exception that nobody catches is written so before the program ends as it would have. Of a
// process and its forked children the one that called it writes. Later calls change nothing.
void record_uncaught_exceptions();

// Launcher's side.
struct ErrorRecord {
  // One line of at most kMaxErrorMessage bytes of UTF-8 without control characters.
  std::string message;
  std::optional<absl::Time> time;  // as the worker says
  // It ended well, but without leaving its group of workers (base/process/last_words.h).
  bool left_its_group = false;
};
inline constexpr size_t kMaxErrorMessage = 500;

// NotFound: there is no such file. InvalidArgument: it is not what it should be, and why.
absl::StatusOr<ErrorRecord> read_error_file(const std::string& path);

// What a terminal may be shown of `text`: spaces for line ends and other control characters, one for several,
// cut at `size` bytes, then with "..." at the end.
std::string clean_line(absl::string_view text, size_t size);

}  // namespace gradwire::tools
