#include "gradwire/base/name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Name, LettersDigitsAndFourMarksAreTaken) {
  for (const char* name : {"a", "worker0", "ps", "Trainer-1.cpu_0:3", "-", "0"}) {
    EXPECT_TRUE(check_name("worker name", name).ok()) << name;
  }
  EXPECT_TRUE(check_name("worker name", std::string(kMaxNameLength, 'x')).ok());
}

TEST(Name, OtherCharactersAndLengthsAreRefused) {
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("a b"), std::string("a\n"), std::string("\0", 1),
        std::string("a\x7f"), std::string("w\xc3\xb6rker"), std::string("a\"b"), std::string("%"),
        std::string(kMaxNameLength + 1, 'x')}) {
    EXPECT_EQ(check_name("worker name", name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(Name, MessageIsShortAndEscapesWhatItShows) {
  const absl::Status escaped = check_name("worker name", "a\x1b[2J\n");
  EXPECT_THAT(std::string(escaped.message()),
              HasSubstr("bad worker name: got \"a\\x1b[2J\\n\", expected 1 to 128"));
  EXPECT_THAT(std::string(escaped.message()), Not(HasSubstr("\x1b")));
  const absl::Status large = check_name("group name", std::string(1 << 20, '/'));
  EXPECT_LT(large.message().size(), 300u);
  EXPECT_THAT(std::string(large.message()), HasSubstr("of 1048576 bytes"));
}

}  // namespace
}  // namespace gradwire
