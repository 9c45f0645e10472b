#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// For tests: ends a ::testing::internal::CaptureStderr(), and returns the captured lines that contain `text`.
inline std::vector<std::string> captured_lines(absl::string_view text) {
  const std::string log = ::testing::internal::GetCapturedStderr();
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(line, text)) lines.emplace_back(line);
  }
  return lines;
}

}  // namespace gradwire
