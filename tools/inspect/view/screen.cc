#include "gradwire/tools/inspect/view/screen.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/text.h"
#include "gradwire/tools/inspect/view/tables.h"

namespace gradwire::inspect {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kMaxFilter = 100;
constexpr const char* kTitles[Screen::kPages] = {"workers", "findings", "calls", "functions",
                                                 "links",   "passes",   "rrefs", "groups"};

constexpr const char* kHelp[] = {
    "1 .. 8, Tab   the pages: workers, findings, calls, functions, links, passes, rrefs, groups",
    "up, down      select a row; also j and k, PgUp and PgDn",
    "s, r          sort by the next column, and in the reverse order",
    "/             show only rows with a text: type it, then Enter; an empty text shows all",
    "Enter         show only the worker of the selected row; again: all workers",
    "Esc           all workers, no filter",
    "p             pause: the job runs on, the view does not change",
    "q             quit",
};

std::string fit(std::string line, std::size_t width) {
  if (line.size() > width) line.resize(width);
  return line;
}

}  // namespace

bool Screen::press(absl::string_view bytes) {
  for (const char byte : bytes) {
    if (!escape_.empty()) {
      escape_.push_back(byte);
      // "ESC [ A" and "ESC O A" are arrows, and "ESC [ 5 ~" is a page. A letter or "~" ends a sequence.
      const bool introducer = escape_.size() == 2 && (byte == '[' || byte == 'O');
      const bool ends = !introducer && (byte == '~' || (byte >= '@' && byte <= '~') || escape_.size() > 8);
      if (!ends) continue;
      if (escape_.size() >= 3) press_arrow(byte == '~' ? escape_[2] : byte);
      escape_.clear();
      continue;
    }
    if (byte == kEscape) {
      escape_ = byte;
      continue;
    }
    if (typing_filter_) {
      press_in_filter(byte);
    } else if (!press_key(byte)) {
      return false;
    }
  }
  // The Esc key is an escape without a sequence. Terminals send a sequence at once.
  if (escape_.size() == 1) {
    escape_.clear();
    typing_filter_ = help_ = false;
    filter_.clear();
    worker_ = 0;
  }
  return true;
}

void Screen::press_in_filter(char key) {
  if (key == '\r' || key == '\n') {
    typing_filter_ = false;
  } else if (key == 0x7f || key == '\b') {
    if (!filter_.empty()) filter_.pop_back();
  } else if (key >= 0x20 && key < 0x7f && filter_.size() < kMaxFilter) {
    filter_.push_back(key);
  }
  pages_[page_].row = 0;
}

bool Screen::press_key(char key) {
  if (key == 'q' || key == 0x03) return false;
  if (help_) {
    help_ = false;
    return true;
  }
  Page& page = pages_[page_];
  switch (key) {
    case '?':
    case 'h':
      help_ = true;
      break;
    case '\t':
      page_ = (page_ + 1) % kPages;
      break;
    case 'j':
      move(1);
      break;
    case 'k':
      move(-1);
      break;
    case 's':
      next_column();
      break;
    case 'r':
      page.reverse = !page.reverse;
      page.unsorted = false;
      break;
    case '/':
      typing_filter_ = true;
      filter_.clear();
      break;
    case 'p':
      paused_ = !paused_;
      break;
    case '\r':
    case '\n':
      worker_name_ = row_worker_name_;
      worker_ = worker_ == 0 ? row_worker_ : 0;
      page.row = 0;
      break;
    default:
      if (key >= '1' && key < static_cast<char>('1' + kPages)) page_ = static_cast<std::size_t>(key - '1');
  }
  return true;
}

void Screen::press_arrow(char key) {
  const auto rows = static_cast<std::ptrdiff_t>(std::max<std::size_t>(rows_shown_, 1));
  switch (key) {
    case 'A':
      return move(-1);
    case 'B':
      return move(1);
    case 'C':
      page_ = (page_ + 1) % kPages;
      return;
    case 'D':
      page_ = (page_ + kPages - 1) % kPages;
      return;
    case '5':
      return move(-rows);
    case '6':
      return move(rows);
    default:
      return;
  }
}

void Screen::move(std::ptrdiff_t rows) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(pages_[page_].row) + rows;
  const auto last = static_cast<std::ptrdiff_t>(rows_ == 0 ? 0 : rows_ - 1);
  pages_[page_].row = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(row, 0, last));
}

void Screen::next_column() {
  Page& page = pages_[page_];
  page.column = page.unsorted || columns_ == 0 ? 0 : (page.column + 1) % columns_;
  page.unsorted = false;
}

Table Screen::table_of(const Report& report) const {
  switch (page_) {
    case 0:
      return workers_table(report.job, report.rates);
    case 1:
      return findings_table(report.findings);
    case 2:
      return calls_table(report.job);
    case 3:
      return functions_table(report.job);
    case 4:
      return links_table(report.job, report.rates);
    case 5:
      return passes_table(report.job);
    case 6:
      return rrefs_table(report.job);
    default:
      return groups_table(report.job);
  }
}

std::string Screen::header(const Report& report) const {
  std::string line;
  for (std::size_t i = 0; i < kPages; ++i) {
    absl::StrAppend(&line, i == page_ ? "[" : " ", i + 1, " ", kTitles[i], i == page_ ? "]" : " ");
  }
  if (worker_ != 0) absl::StrAppend(&line, "  worker ", worker_name_);
  if (!filter_.empty() || typing_filter_) absl::StrAppend(&line, "  /", filter_, typing_filter_ ? "_" : "");
  if (paused_) absl::StrAppend(&line, "  paused");
  return line;
}

std::string Screen::footer(absl::string_view status) const {
  return status.empty() ? "? help   s sort   r reverse   / filter   Enter worker   p pause   q quit"
                        : printable(status);
}

// The lines from the top: a summary, the pages, an empty one, the names of the columns, the rows, and the
// keys.
std::vector<std::string> Screen::draw(const Report& report, absl::string_view status, std::size_t width,
                                      std::size_t height) {
  constexpr std::size_t kOtherLines = 5;
  selected_line_ = kNoLine;
  std::vector<std::string> lines = {
      absl::StrCat("gradwire inspect  ", absl::FormatTime("%H:%M:%S", report.job.time, absl::LocalTimeZone()),
                   "  ", summary_of(report)),
      header(report), ""};
  if (help_) {
    lines.insert(lines.end(), std::begin(kHelp), std::end(kHelp));
  } else {
    Page& page = pages_[page_];
    Table table = table_of(report);
    keep_worker(table, worker_);
    filter_rows(table, filter_);
    if (!page.unsorted) {
      page.column = std::min(page.column, table.columns.size() - 1);
      sort_rows(table, page.column, page.reverse);
      absl::StrAppend(&table.columns[page.column].name, page.reverse ? "^" : "v");
    }
    columns_ = table.columns.size();
    rows_ = table.rows.size();
    rows_shown_ = height > kOtherLines ? height - kOtherLines : 0;
    page.row = rows_ == 0 ? 0 : std::min(page.row, rows_ - 1);
    // Scroll so that the selected row is seen.
    page.first_row = std::min(page.first_row, page.row);
    if (rows_shown_ > 0 && page.row >= page.first_row + rows_shown_)
      page.first_row = page.row - rows_shown_ + 1;
    row_worker_ = rows_ == 0 ? 0 : table.rows[page.row].worker;
    const WorkerView* worker = report.job.find(row_worker_);
    row_worker_name_ = worker == nullptr ? "?" : printable(worker->record.name());
    const std::vector<std::string> all = lines_of(table, width);
    lines.push_back(all.front());
    for (std::size_t i = page.first_row; i < std::min(rows_, page.first_row + rows_shown_); ++i) {
      if (i == page.row) selected_line_ = lines.size();
      lines.push_back(all[i + 1]);
    }
    if (rows_ == 0) lines.push_back("(nothing)");
  }
  if (height == 0) return {};
  lines.resize(height - 1);
  lines.push_back(footer(status));
  for (std::string& line : lines) line = fit(std::move(line), width);
  if (selected_line_ != kNoLine && selected_line_ >= height - 1) selected_line_ = kNoLine;
  return lines;
}

}  // namespace gradwire::inspect
