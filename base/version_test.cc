#include "gradwire/base/version.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

TEST(Version, TextHasTheThreeNumbers) {
  EXPECT_EQ(kVersion,
            absl::StrCat(GRADWIRE_VERSION_MAJOR, ".", GRADWIRE_VERSION_MINOR, ".", GRADWIRE_VERSION_PATCH));
}

TEST(Version, NumbersCanBeComparedByThePreprocessor) {
#if GRADWIRE_VERSION_MAJOR > 0 || GRADWIRE_VERSION_MINOR > 0 || GRADWIRE_VERSION_PATCH > 0
  SUCCEED();
#else
  FAIL() << "got version " << kVersion << ", expected at least 0.0.1";
#endif
}

}  // namespace
}  // namespace gradwire
