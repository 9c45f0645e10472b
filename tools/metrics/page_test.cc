#include "gradwire/tools/metrics/page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace gradwire::tools {
namespace {

TEST(MetricsPage, DocumentHasTheMetricsOfThisBuild) {
  std::ifstream file("docs/metrics.md");
  ASSERT_TRUE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), metrics_page()) << "docs/metrics.md is old: bazel run //tools/metrics:page";
}

}  // namespace
}  // namespace gradwire::tools
