#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::tools {

// As many columns as a terminal uses for UTF-8: one for each character.
size_t columns(absl::string_view text);

// Appends `words`, which are separated by spaces, and a newline to `text`, whose last line has `indent`
// columns. Further lines begin with so many spaces. A line has at most `width` columns, and a longer word is
// broken.
void append_wrapped(std::string& text, absl::string_view words, size_t indent, size_t width);

// Cuts a stream of bytes into lines and puts a prefix before each, or passes them on unchanged, but line by
// line. Not thread-safe.
class LinePrefixer {
 public:
  // A longer line is cut here, each piece a line of its own, so that a stream without newlines needs no
  // endless memory.
  static constexpr size_t kMaxLine = 1 << 20;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  // Adds nothing, neither a prefix nor a newline; a carriage return ends a line too, since progress bars are
  // made of those.
  static LinePrefixer passing_on();

  // Appends the lines that `bytes` completes to `lines`, and keeps what is after the last newline.
  void feed(absl::string_view bytes, std::string& lines);
  // Appends what was kept, with a newline unless lines are passed on.
  void finish(std::string& lines);

 private:
  void emit(absl::string_view rest_of_line, std::string& lines);
  void pass_on(absl::string_view bytes, std::string& lines);

  std::string prefix_;
  bool passing_on_ = false;
  std::string partial_;
};

}  // namespace gradwire::tools
