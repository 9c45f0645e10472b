#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire {

// Builds a text of at most kSize bytes without allocating memory, for signal handlers. Text beyond kSize is
// dropped. Async-signal-safe; not thread-safe.
template <size_t kSize>
class SafeText {
 public:
  SafeText& add(absl::string_view text) {
    for (const char c : text) put(c);
    return *this;
  }
  SafeText& add_decimal(uint64_t number) { return add_number(number, 10); }
  SafeText& add_hex(uint64_t number) { return add("0x").add_number(number, 16); }
  // Adds `text` escaped for the inside of a JSON string; control characters become spaces.
  SafeText& add_json(absl::string_view text) {
    for (const char c : text) {
      if (c == '"' || c == '\\') put('\\');
      put(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
    }
    return *this;
  }

  absl::string_view view() const { return {text_, size_}; }

 private:
  void put(char c) {
    if (size_ < kSize) text_[size_++] = c;
  }
  SafeText& add_number(uint64_t number, unsigned base) {
    char digits[20];
    size_t count = 0;
    do {
      digits[count++] = "0123456789abcdef"[number % base];
      number /= base;
    } while (number > 0);
    while (count > 0) put(digits[--count]);
    return *this;
  }

  char text_[kSize];
  size_t size_ = 0;
};

}  // namespace gradwire
