#include "gradwire/tools/inspect/view/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::inspect {
namespace {

constexpr char kGap[] = "  ";

std::string line_of(const std::vector<std::string>& texts, const std::vector<std::size_t>& widths,
                    const std::vector<Table::Column>& columns, std::size_t width) {
  std::string line;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string space(widths[i] - std::min(widths[i], texts[i].size()), ' ');
    const bool last = i + 1 == texts.size();
    if (i > 0) line += kGap;
    absl::StrAppend(&line, columns[i].is_number ? space : "", texts[i],
                    columns[i].is_number || last ? "" : space);
  }
  if (width > 0 && line.size() > width) {
    line.resize(width);
    line.back() = '>';
  }
  return line;
}

}  // namespace

void sort_rows(Table& table, std::size_t column, bool reverse) {
  if (column >= table.columns.size()) return;
  const bool is_number = table.columns[column].is_number;
  std::stable_sort(table.rows.begin(), table.rows.end(), [&](const Table::Row& a, const Table::Row& b) {
    const Table::Row& first = reverse ? b : a;
    const Table::Row& second = reverse ? a : b;
    return is_number ? first.cells[column].number > second.cells[column].number
                     : first.cells[column].text < second.cells[column].text;
  });
}

void filter_rows(Table& table, absl::string_view text) {
  if (text.empty()) return;
  const std::string wanted = absl::AsciiStrToLower(text);
  std::erase_if(table.rows, [&](const Table::Row& row) {
    return std::none_of(row.cells.begin(), row.cells.end(), [&](const Table::Cell& cell) {
      return absl::StrContains(absl::AsciiStrToLower(cell.text), wanted);
    });
  });
}

void keep_worker(Table& table, uint64_t worker) {
  if (worker == 0) return;
  std::erase_if(table.rows, [&](const Table::Row& row) { return row.worker != worker; });
}

std::vector<std::string> lines_of(const Table& table, std::size_t width) {
  std::vector<std::size_t> widths;
  std::vector<std::string> texts;
  for (const Table::Column& column : table.columns) {
    widths.push_back(column.name.size());
    texts.push_back(column.name);
  }
  for (const Table::Row& row : table.rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row.cells[i].text.size());
  }
  std::vector<std::string> lines = {line_of(texts, widths, table.columns, width)};
  for (const Table::Row& row : table.rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) texts[i] = row.cells[i].text;
    lines.push_back(line_of(texts, widths, table.columns, width));
  }
  return lines;
}

}  // namespace gradwire::inspect
