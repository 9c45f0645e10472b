#pragma once

#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/safe_text.h"

namespace gradwire {

// Builds one line of a flight record: a JSON object whose fields are added one after the other. What does not
// fit into kSize bytes is left out, and the line is then not complete(). Async-signal-safe; not thread-safe.
class JsonLine {
 public:
  static constexpr std::size_t kSize = 1024;

  explicit JsonLine(absl::string_view type) { text_.add("{\"type\":\"").add(type).add("\""); }

  // `value` may come from another process: bytes that are not printable ASCII become '?'.
  JsonLine& text(absl::string_view key, absl::string_view value) {
    open(key).add("\"");
    for (const char c : value) {
      const char shown = c >= 0x20 && c < 0x7f ? c : '?';
      text_.add_json(absl::string_view(&shown, 1));
    }
    text_.add("\"");
    return *this;
  }
  JsonLine& number(absl::string_view key, int64_t value) {
    open(key);
    if (value < 0) text_.add("-");
    text_.add_decimal(value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value));
    return *this;
  }
  // An id of 64 bits as a text, "0x1f": not every reader of JSON has integers of that size.
  JsonLine& id(absl::string_view key, uint64_t value) {
    open(key).add("\"").add_hex(value).add("\"");
    return *this;
  }

  // Ends the line.
  absl::string_view end() { return text_.add("}").view(); }
  // Call after end().
  bool complete() const { return text_.view().size() < kSize; }

 private:
  SafeText<kSize>& open(absl::string_view key) { return text_.add(",\"").add(key).add("\":"); }
  SafeText<kSize> text_;
};

// Begins the first line of a flight record. Call boot_id() before a crash does it. `source`: "agent" or
// "group". The two times are of the same moment: other times of the record are on Clock::system(), and
// readers map them to the wall clock with it.
inline JsonLine flight_header(absl::string_view source, absl::string_view reason) {
  const auto nanoseconds = [](clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  JsonLine line("flight");
  line.number("version", 1).text("source", source).text("reason", reason.substr(0, 512));
  line.number("process", getpid());
  // Processes with the same boot have the same monotonic clock.
  line.text("boot", boot_id());
  line.number("wall_ns", nanoseconds(CLOCK_REALTIME)).number("clock_ns", nanoseconds(CLOCK_MONOTONIC));
  return line;
}

}  // namespace gradwire
