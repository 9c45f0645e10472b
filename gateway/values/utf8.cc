#include "gradwire/gateway/values/utf8.h"

#include "gradwire/base/text/utf8.h"

namespace gradwire::gateway {
bool is_utf8(absl::string_view text) {
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    if (!next.valid) return false;
    text.remove_prefix(next.size);
  }
  return true;
}

std::string printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    if (next.valid) {
      out.append(text.data(), next.size);
    } else {
      out.push_back('?');
    }
    text.remove_prefix(next.size);
  }
  return out;
}

}  // namespace gradwire::gateway
