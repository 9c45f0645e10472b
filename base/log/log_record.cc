#include "gradwire/base/log/log_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/text/json_text.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire {
namespace {

void append_c_escape(std::string& out, char32_t code) {
  switch (code) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      absl::StrAppend(&out, code < 0x80 ? absl::StrFormat("\\x%02x", static_cast<unsigned>(code))
                                        : absl::StrFormat("\\u%04x", static_cast<unsigned>(code)));
  }
}

void append_text(std::string& out, absl::string_view text) {
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    if (!next.valid) {
      absl::StrAppend(&out, absl::StrFormat("\\x%02x", static_cast<unsigned char>(text[0])));
    } else if (is_control(next.code)) {
      append_c_escape(out, next.code);
    } else {
      out.append(text.data(), next.size);
    }
    text.remove_prefix(next.size);
  }
}

// Cuts `text` at the start of a character. Returns the number of bytes that were cut off.
std::size_t cut(absl::string_view& text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return 0;
  std::size_t end = max_bytes;
  while (end > 0 && max_bytes - end < 4 && (text[end] & 0xc0) == 0x80) --end;
  const std::size_t rest = text.size() - end;
  text = text.substr(0, end);
  return rest;
}

std::string cut_note(std::size_t bytes) { return absl::StrCat(" ... and ", bytes, " bytes more"); }

absl::string_view name_of(LogLevel level) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error", "off"};
  return kNames[static_cast<int>(level)];
}

// "rpc/link/link.cc" of a path that the compiler has recorded. The path of a header begins with the folder
// from which Bazel lets others include it, and ends with "gradwire/rpc/link/link.h".
absl::string_view source_path(absl::string_view file) {
  constexpr absl::string_view kRoot = "gradwire/";
  const std::size_t root = file.rfind(kRoot);
  return root == absl::string_view::npos ? file : file.substr(root + kRoot.size());
}

std::string text_line(const LogRecord& record) {
  const char letter = record.progress != nullptr ? 'P' : "DIWEO"[static_cast<int>(record.level)];
  std::string line = absl::StrCat(absl::string_view(&letter, 1),
                                  absl::FormatTime(" %H:%M:%E3S ", record.time, absl::LocalTimeZone()),
                                  record.pid, " gradwire");
  if (!record.worker.empty()) {
    absl::StrAppend(&line, "[", printable(record.worker, 255), "]");
  } else if (record.rank.has_value()) {
    absl::StrAppend(&line, "[rank ", *record.rank, "]");
  }
  absl::StrAppend(&line, ": ",
                  printable(record.progress != nullptr ? progress_text(*record.progress, record.elapsed)
                                                       : std::string(record.message)),
                  "\n");
  return line;
}

std::string json_line(const LogRecord& record) {
  const bool progress = record.progress != nullptr;
  std::string line = absl::StrCat(
      "{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", record.time, absl::UTCTimeZone()),
      "\",\"level\":\"", progress ? "progress" : name_of(record.level), "\",\"pid\":", record.pid);
  if (record.rank.has_value()) absl::StrAppend(&line, ",\"rank\":", *record.rank);
  if (!record.worker.empty()) {
    line += ",\"worker\":";
    append_json_text(line, record.worker.substr(0, 255));
  }
  absl::string_view message = progress ? absl::string_view(record.progress->text) : record.message;
  const std::size_t rest = cut(message, kMaxLogMessage);
  line += ",\"message\":";
  append_json_text(line, rest == 0 ? message : absl::string_view(absl::StrCat(message, cut_note(rest))));
  if (record.file != nullptr) {
    line += ",\"source\":";
    append_json_text(line, absl::StrCat(source_path(record.file), ":", record.source_line));
  }
  if (progress) {
    absl::StrAppend(&line, absl::StrFormat(",\"elapsed_s\":%.1f", absl::ToDoubleSeconds(record.elapsed)));
    if (record.progress->done.has_value()) absl::StrAppend(&line, ",\"done\":", *record.progress->done);
    if (record.progress->total.has_value()) absl::StrAppend(&line, ",\"total\":", *record.progress->total);
    absl::StrAppend(&line, ",\"finished\":", record.finished ? "true" : "false");
  }
  return line + "}\n";
}

}  // namespace

std::string printable(absl::string_view text, std::size_t max_bytes) {
  const std::size_t rest = cut(text, max_bytes);
  std::string out;
  out.reserve(text.size());
  append_text(out, text);
  if (rest > 0) out += cut_note(rest);
  return out;
}

std::string progress_text(const ProgressState& state, absl::Duration elapsed) {
  return absl::StrCat(state.text, " (", absl::FormatDuration(absl::Trunc(elapsed, absl::Seconds(1))), ")");
}

std::string format_record(const LogRecord& record, LogFormat format) {
  return format == LogFormat::kJson ? json_line(record) : text_line(record);
}

}  // namespace gradwire
