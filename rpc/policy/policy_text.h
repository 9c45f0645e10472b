#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/random_id.h"

namespace gradwire::rpc::testing {

// A policy file of a test. Removed at its end.
class PolicyText {
 public:
  explicit PolicyText(absl::string_view text) { replace(text); }
  ~PolicyText() { unlink(path_.c_str()); }
  PolicyText(const PolicyText&) = delete;
  PolicyText& operator=(const PolicyText&) = delete;

  const std::string& path() const { return path_; }
  // Replaces the file at once, as `mv` does.
  void replace(absl::string_view text) {
    const std::string next = path_ + ".next";
    std::ofstream(next) << text;
    EXPECT_EQ(chmod(next.c_str(), 0600), 0);
    EXPECT_EQ(rename(next.c_str(), path_.c_str()), 0);
  }

 private:
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/policy-", random_id());
};

}  // namespace gradwire::rpc::testing
