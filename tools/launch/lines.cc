#include "tools/launch/lines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {

void LinePrefixer::feed(absl::string_view bytes, std::string& lines) {
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
  if (!partial_.empty()) emit("", lines);
}

void LinePrefixer::emit(absl::string_view rest_of_line, std::string& lines) {
  absl::StrAppend(&lines, prefix_, partial_, rest_of_line, "\n");
  partial_.clear();
}

}  // namespace gradwire::tools
