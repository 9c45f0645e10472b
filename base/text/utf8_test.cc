#include "gradwire/base/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

void expect_character(const std::string& text, std::size_t size, char32_t code) {
  const Utf8Character character = first_character(text + "rest");
  EXPECT_TRUE(character.valid);
  EXPECT_EQ(character.size, size);
  EXPECT_EQ(character.code, code);
}

TEST(Utf8, CharactersOfEachSize) {
  expect_character("a", 1, 'a');
  expect_character(std::string(1, '\0'), 1, 0);
  expect_character("\xc2\x80", 2, 0x80);
  expect_character("\xdf\xbf", 2, 0x7ff);
  expect_character("\xe0\xa0\x80", 3, 0x800);
  expect_character("\xef\xbf\xbf", 3, 0xffff);
  expect_character("\xf0\x90\x80\x80", 4, 0x10000);
  expect_character("\xf4\x8f\xbf\xbf", 4, 0x10ffff);
}

TEST(Utf8, OtherBytesAreOneInvalidByteEach) {
  for (const std::string text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc2", "\xe1\x80",
        "\xf1\x80\x80", "\xc2(", "\xe1\x80(", "\xf1\x80\x80("}) {
    const Utf8Character character = first_character(text);
    EXPECT_FALSE(character.valid) << text;
    EXPECT_EQ(character.size, 1u) << text;
  }
}

}  // namespace
}  // namespace gradwire
