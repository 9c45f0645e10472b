#include "gradwire/base/text/json_text.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

std::string json(absl::string_view text) {
  std::string out = "x";
  append_json_text(out, text);
  return out;
}

TEST(JsonText, PlainTextIsQuoted) {
  EXPECT_EQ(json(""), "x\"\"");
  EXPECT_EQ(json("a b \xc3\xa9"), "x\"a b \xc3\xa9\"");
}

TEST(JsonText, QuotesAndControlCharactersAreEscaped) {
  EXPECT_EQ(json("\"\\/"), "x\"\\\"\\\\/\"");
  EXPECT_EQ(json("\n\r\t"), "x\"\\n\\r\\t\"");
  EXPECT_EQ(json(absl::string_view("\0\x1b\x7f", 3)), "x\"\\u0000\\u001b\\u007f\"");
  EXPECT_EQ(json("\xe2\x80\xae"), "x\"\\u202e\"");
}

TEST(JsonText, BytesThatAreNotUtf8AreReplaced) { EXPECT_EQ(json("a\xff\xc3z"), "x\"a\\ufffd\\ufffdz\""); }

}  // namespace
}  // namespace gradwire
