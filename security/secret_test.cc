#include "gradwire/security/secret.h"

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

template <class T>
concept Printable = requires(std::ostream& stream, const T& value) {
  stream << value;
};

// A secret that reaches a message or a log by mistake does not compile.
static_assert(Printable<std::string> && !Printable<Secret>);
static_assert(std::is_constructible_v<absl::AlphaNum, const std::string&> &&
              !std::is_constructible_v<absl::AlphaNum, const Secret&>);
static_assert(!std::is_convertible_v<const Secret&, absl::string_view> &&
              !std::is_convertible_v<std::string, Secret>);

TEST(Secret, KeepsItsText) {
  EXPECT_TRUE(Secret().empty());
  EXPECT_TRUE(Secret("").empty());
  const Secret secret("abc");
  EXPECT_EQ(secret.reveal(), "abc");
  EXPECT_EQ(secret.size(), 3u);
}

TEST(Secret, CopiesShareOnePlaceInMemory) {
  Secret secret("a secret that is longer than a short string");
  const char* const place = secret.reveal().data();
  const Secret copy = secret;
  EXPECT_EQ(copy.reveal().data(), place);
  const Secret moved = std::move(secret);
  EXPECT_EQ(moved.reveal().data(), place);
}

TEST(Secret, TakeWipesTheTextOfTheCaller) {
  for (std::string text : {std::string("short"), std::string(100, 'x')}) {
    text.reserve(200);
    const std::string before = text;
    const char* const place = text.data();
    const Secret secret = Secret::take(text);
    EXPECT_EQ(secret.reveal(), before);
    EXPECT_TRUE(text.empty());
    // The memory still belongs to `text`, whose capacity did not change.
    text.resize(before.size());
    ASSERT_EQ(text.data(), place);
    EXPECT_EQ(text, std::string(before.size(), '\0'));
  }
}

TEST(Secret, WipeReachesEarlierContentsBehindTheEnd) {
  std::string text(100, 'x');
  text.resize(3);
  const char* const place = text.data();
  wipe(text);
  EXPECT_TRUE(text.empty());
  for (int i = 4; i < 100; ++i) EXPECT_EQ(place[i], '\0') << i;
}

TEST(Secret, ComparesSizesAndBytes) {
  EXPECT_TRUE(Secret("abc") == Secret("abc"));
  EXPECT_FALSE(Secret("abc") == Secret("abd"));
  EXPECT_FALSE(Secret("abc") == Secret("abcd"));
  EXPECT_FALSE(Secret("abc") == Secret());
  EXPECT_TRUE(Secret() == Secret());
}

}  // namespace
}  // namespace gradwire::security
