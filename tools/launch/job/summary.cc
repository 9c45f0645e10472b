#include "gradwire/tools/launch/job/summary.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/tools/launch/io/lines.h"
#include "gradwire/tools/launch/process/error_file.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {
namespace {

constexpr size_t kWidth = 110;
// Width of the labels.
constexpr size_t kIndent = 12;
// Limit for the other failures in the table.
constexpr size_t kMaxOthers = 32;

// Shortens a name in the middle, because host names may differ at either end.
std::string shorten(absl::string_view name, size_t size) {
  const std::string clean = clean_line(name, 4 * kWidth);
  if (columns(clean) <= size) return clean;
  // Characters of several bytes must not be cut in the middle, so cut at the end.
  if (columns(clean) != clean.size()) return clean_line(clean, size);
  const size_t tail = (size - 2) / 2;
  return absl::StrCat(clean.substr(0, size - 2 - tail), "..", clean.substr(clean.size() - tail));
}

std::string ending(const rendezvous::Failure& failure) {
  return failure.signal == 0 ? absl::StrCat("exit code ", failure.exit_code) : signal_name(failure.signal);
}

void append_field(std::string& text, absl::string_view label, absl::string_view value) {
  absl::StrAppend(&text, absl::StrFormat("  %-*s", kIndent - 2, label));
  append_wrapped(text, value, kIndent, kWidth);
}

std::string rule(char c) { return std::string(72, c) + "\n"; }

using Row = std::array<std::string, 7>;

Row row_of(const rendezvous::Failure& failure, absl::TimeZone zone) {
  return {absl::StrCat(failure.rank),
          absl::StrCat(failure.local_rank),
          shorten(failure.role, 16),
          shorten(failure.host, 24),
          absl::StrCat(failure.pid),
          ending(failure),
          absl::FormatTime("%H:%M:%E3S", failure.time, zone)};
}

// Appends a table whose columns fit their contents. The message takes the rest of the line.
void append_table(std::string& text, const std::vector<rendezvous::Failure>& failures, absl::TimeZone zone) {
  std::vector<Row> rows = {{"rank", "local", "role", "host", "pid", "ended by", "time"}};
  const size_t shown = std::min(failures.size(), kMaxOthers);
  for (size_t i = 0; i < shown; ++i) rows.push_back(row_of(failures[i], zone));
  std::array<size_t, 7> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = " ";
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string padding(widths[i] - columns(rows[r][i]), ' ');
      const bool number = i == 0 || i == 1 || i == 4;
      absl::StrAppend(&line, " ", number ? padding : "", rows[r][i], number ? "" : padding, " ");
    }
    const size_t left = kWidth - std::min(kWidth, columns(line) + 1);
    const std::string message = r == 0 ? "message" : clean_line(failures[r - 1].message, left);
    if (message.empty()) {
      line.erase(line.find_last_not_of(' ') + 1);
    } else {
      absl::StrAppend(&line, " ", message);
    }
    absl::StrAppend(&text, line, "\n");
  }
  if (shown < failures.size()) absl::StrAppend(&text, "  and ", failures.size() - shown, " more\n");
}

}  // namespace

// Text in a failure may come from workers of other nodes. It is cleaned and bounded here, so it cannot
// control the terminal or hide the rest.
std::string failure_summary(absl::string_view program, const rendezvous::Failure& first,
                            const std::vector<rendezvous::Failure>& others, absl::TimeZone zone) {
  std::string text = rule('=');
  absl::StrAppend(&text, shorten(program, 64), " failed; first of all\n");
  append_field(
      text, "rank",
      absl::StrCat(first.rank, " (local rank ", first.local_rank, ", role ", shorten(first.role, 64), ")"));
  append_field(text, "host", absl::StrCat(shorten(first.host, 80), ", pid ", first.pid));
  append_field(text, "ended by", ending(first));
  append_field(text, "time", absl::FormatTime("%Y-%m-%d %H:%M:%E3S %Ez", first.time, zone));
  const std::string message = clean_line(first.message, kMaxErrorMessage);
  append_field(text, "message", message.empty() ? "none; see the worker's output" : message);
  if (!others.empty()) {
    absl::StrAppend(&text, rule('-'), "then\n");
    append_table(text, others, zone);
  }
  return text + rule('=');
}

}  // namespace gradwire::tools
