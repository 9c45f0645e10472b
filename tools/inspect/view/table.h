#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::inspect {

// A table of texts that a terminal shows. The texts are printable (analysis/text.h).
struct Table {
  struct Column {
    std::string name;
    // Numbers are sorted by Cell::number, the largest first, and stand at the right.
    bool is_number = false;
  };
  struct Cell {
    std::string text;
    double number = 0;
  };
  struct Row {
    std::vector<Cell> cells;
    // The worker that the row is about.
    uint64_t worker = 0;
  };

  std::string title;
  std::vector<Column> columns;
  std::vector<Row> rows;
  // A line below the rows, for example "and 12 more"; may be empty.
  std::string note;
};

// Sorts the rows by a column. Rows with equal cells keep their order.
void sort_rows(Table& table, std::size_t column, bool reverse);
// Drops the rows in which no cell contains `text`, ignoring case.
void filter_rows(Table& table, absl::string_view text);
// Drops the rows about other workers.
void keep_worker(Table& table, uint64_t worker);

// The lines of the table: the names of the columns, then the rows. Each is at most `width` long, and is cut
// at the end. 0: no limit.
std::vector<std::string> lines_of(const Table& table, std::size_t width);

}  // namespace gradwire::inspect
