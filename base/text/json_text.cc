#include "gradwire/base/text/json_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire {

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

void append_json_text(std::string& out, absl::string_view text) {
  out += '"';
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    if (!next.valid) {
      out += "\\ufffd";
    } else if (next.code == '"' || next.code == '\\') {
      out += '\\';
      out += text[0];
    } else if (next.code == '\n') {
      out += "\\n";
    } else if (next.code == '\r') {
      out += "\\r";
    } else if (next.code == '\t') {
      out += "\\t";
    } else if (is_control(next.code)) {
      absl::StrAppend(&out, absl::StrFormat("\\u%04x", static_cast<unsigned>(next.code)));
    } else {
      out.append(text.data(), next.size);
    }
    text.remove_prefix(next.size);
  }
  out += '"';
}

}  // namespace gradwire
