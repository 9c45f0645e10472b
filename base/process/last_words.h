#pragma once

#include "absl/strings/string_view.h"

namespace gradwire {

// Last words are a message for the launcher from a process that can no longer run ordinary code. They are
// written to the file that TORCHELASTIC_ERROR_FILE names, in torchelastic's format.
// tools/launch/process/error_file.h reads that file, and writes such files with more fields.

// Records the name of the file and the id of the process. Repeated calls have no effect. Thread-safe. Not
// async-signal-safe.
void prepare_last_words();

enum class LastWords {
  kCrash,
  // The process exits normally, but its worker has not left its group: calls of other workers will fail.
  kLeftItsGroup,
};

// Writes the file. An existing file is kept: its author had more information. Does nothing before
// prepare_last_words(), without TORCHELASTIC_ERROR_FILE, or in a forked child. At most 1 KiB of `message` is
// written. Async-signal-safe.
void leave_last_words(absl::string_view message, LastWords kind);

}  // namespace gradwire
