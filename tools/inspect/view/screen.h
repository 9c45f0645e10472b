#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/tools/inspect/view/report.h"
#include "gradwire/tools/inspect/view/table.h"

namespace gradwire::inspect {

// The live view: which page is shown, how it is sorted and filtered, and what keys do. Pure: bytes of keys
// and reports go in, lines come out. Not thread-safe.
class Screen {
 public:
  static constexpr std::size_t kPages = 8;

  // Handles bytes that the terminal sent. Arrows are the usual sequences; others are ignored. Returns false
  // when the user wants to quit.
  bool press(absl::string_view bytes);
  // The lines for a terminal of this size, at most `height`, each at most `width` long. `status`: what the
  // reader of the job reports, for the last line; may be empty.
  std::vector<std::string> draw(const Report& report, absl::string_view status, std::size_t width,
                                std::size_t height);

  // The view does not change while it is paused.
  bool paused() const { return paused_; }
  // The line that is selected, counted from 0, or kNoLine.
  std::size_t selected_line() const { return selected_line_; }
  static constexpr std::size_t kNoLine = ~std::size_t{0};

 private:
  // Each page has its own order.
  struct Page {
    std::size_t column = 0;
    bool reverse = false;
    // No column was chosen: the order of the table.
    bool unsorted = true;
    std::size_t row = 0;
    std::size_t first_row = 0;
  };

  bool press_key(char key);
  void press_in_filter(char key);
  void press_arrow(char key);
  void move(std::ptrdiff_t rows);
  void next_column();
  Table table_of(const Report& report) const;
  std::string header(const Report& report) const;
  std::string footer(absl::string_view status) const;

  std::size_t page_ = 0;
  std::array<Page, kPages> pages_;
  std::string filter_;
  bool typing_filter_ = false;
  bool help_ = false;
  bool paused_ = false;
  // The worker to which the tables are narrowed; 0: all.
  uint64_t worker_ = 0;
  std::string worker_name_;
  // Bytes of an escape sequence that has begun.
  std::string escape_;

  // The table that was drawn last, for keys that depend on it.
  std::size_t columns_ = 0;
  std::size_t rows_ = 0;
  std::size_t rows_shown_ = 0;
  uint64_t row_worker_ = 0;
  std::string row_worker_name_;
  std::size_t selected_line_ = kNoLine;
};

}  // namespace gradwire::inspect
