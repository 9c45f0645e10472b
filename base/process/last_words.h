#pragma once

#include "absl/strings/string_view.h"

namespace gradwire {

// Last words are a message that a process leaves for its launcher when it can no longer run ordinary code, in
// the file that TORCHELASTIC_ERROR_FILE names and in torchelastic's format. tools/launch/process/error_file.h
// reads that file, and writes such files with more fields.

// Notes the file's name and the process. Not async-signal-safe; later calls change nothing. Thread-safe.
void prepare_last_words();

enum class LastWords {
  kCrash,
  // The process ends well, but its worker has not left its group: other workers will fail because of it.
  kLeftItsGroup,
};

// Writes the file, unless it is there already: whoever wrote it knew more. Nothing before
// prepare_last_words(), without a file's name, or in a forked child. At most 1 KiB of `message` is written.
// Async-signal-safe.
void leave_last_words(absl::string_view message, LastWords kind);

}  // namespace gradwire
