#include "gradwire/tools/launch/io/lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::tools {

size_t columns(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

void append_wrapped(std::string& text, absl::string_view words, size_t indent, size_t width) {
  size_t column = indent;
  for (absl::string_view word : absl::StrSplit(words, ' ', absl::SkipEmpty())) {
    const auto space = [&] { return column > indent ? 1 : 0; };
    while (column + space() + columns(word) > width) {
      if (column == indent) {
        // The word is longer than a line. Do not cut in the middle of a UTF-8 character.
        size_t cut = width - indent;
        while (cut > 1 && (word[cut] & 0xc0) == 0x80) --cut;
        absl::StrAppend(&text, word.substr(0, cut));
        word.remove_prefix(cut);
      }
      absl::StrAppend(&text, "\n", std::string(indent, ' '));
      column = indent;
    }
    absl::StrAppend(&text, column > indent ? " " : "", word);
    column += space() + columns(word);
  }
  text += '\n';
}

LinePrefixer LinePrefixer::pass_through() {
  LinePrefixer lines("");
  lines.pass_through_ = true;
  return lines;
}

void LinePrefixer::feed_unchanged(absl::string_view bytes, std::string& lines) {
  const size_t end = bytes.find_last_of("\n\r");
  const size_t whole = end == absl::string_view::npos ? 0 : end + 1;
  if (whole > 0) {
    absl::StrAppend(&lines, partial_, bytes.substr(0, whole));
    partial_.clear();
  }
  absl::StrAppend(&partial_, bytes.substr(whole));
  if (partial_.size() <= kMaxLine) return;
  lines += partial_;
  partial_.clear();
}

// Each turn of the loop takes one of three cases: a newline within the limit ends a line; a line that
// reaches the limit is ended here; the rest of the bytes is kept for the next call.
void LinePrefixer::feed(absl::string_view bytes, std::string& lines) {
  if (pass_through_) return feed_unchanged(bytes, lines);
  while (!bytes.empty()) {
    const size_t room = kMaxLine - partial_.size();
    const size_t newline = bytes.substr(0, room + 1).find('\n');
    if (newline != absl::string_view::npos) {
      emit(bytes.substr(0, newline), lines);
      bytes.remove_prefix(newline + 1);
    } else if (bytes.size() > room) {
      emit(bytes.substr(0, room), lines);
      bytes.remove_prefix(room);
    } else {
      partial_.append(bytes.data(), bytes.size());
      return;
    }
  }
}

void LinePrefixer::finish(std::string& lines) {
  if (partial_.empty()) return;
  if (!pass_through_) return emit("", lines);
  lines += partial_;
  partial_.clear();
}

void LinePrefixer::emit(absl::string_view rest_of_line, std::string& lines) {
  absl::StrAppend(&lines, prefix_, partial_, rest_of_line, "\n");
  partial_.clear();
}

}  // namespace gradwire::tools
