#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::tools {

// The number of columns that a terminal uses for UTF-8 text: one for each character.
size_t columns(absl::string_view text);

// Appends `words`, which are separated by spaces, and a newline to `text`, whose last line has `indent`
// columns. Further lines begin with that many spaces. A line has at most `width` columns; a longer word is
// broken.
void append_wrapped(std::string& text, absl::string_view words, size_t indent, size_t width);

// Splits a stream of bytes into lines. Puts a prefix before each line, or passes whole lines through
// unchanged. Not thread-safe.
class LinePrefixer {
 public:
  // A longer line is split after this many bytes into lines of their own, so that a stream without newlines
  // does not need unbounded memory.
  static constexpr size_t kMaxLine = 1 << 20;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  // A LinePrefixer that adds neither a prefix nor a newline. A carriage return also ends a line, for progress
  // bars.
  static LinePrefixer pass_through();

  // Appends the lines that `bytes` completes to `lines`, and keeps what is after the last newline.
  void feed(absl::string_view bytes, std::string& lines);
  // Appends the kept text, with a newline unless lines pass through unchanged.
  void finish(std::string& lines);

 private:
  void emit(absl::string_view rest_of_line, std::string& lines);
  void feed_unchanged(absl::string_view bytes, std::string& lines);

  std::string prefix_;
  bool pass_through_ = false;
  std::string partial_;
};

}  // namespace gradwire::tools
