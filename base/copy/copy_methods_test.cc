#include "gradwire/base/copy/copy_methods.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

TEST(CopyWith, EachMethodCopiesEachSizeAtEachAlignment) {
  std::string source(3000, '\0');
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 + i / 256);
  for (std::size_t method = 0; method < kCopyMethods; ++method) {
    for (std::size_t to = 0; to < 70; to += 3) {
      for (std::size_t from = 0; from < 70; from += 7) {
        for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 1000, 2048}) {
          std::string target(3000, 'x');
          copy_with(static_cast<CopyMethod>(method), target.data() + to, source.data() + from, bytes);
          std::string expected(3000, 'x');
          expected.replace(to, bytes, source, from, bytes);
          ASSERT_EQ(target, expected) << to_string(static_cast<CopyMethod>(method)) << " of " << bytes
                                      << " bytes from " << from << " to " << to;
        }
      }
    }
  }
}

TEST(CopyWith, NothingNeedsNoMemory) {
  for (std::size_t method = 0; method < kCopyMethods; ++method) {
    copy_with(static_cast<CopyMethod>(method), nullptr, nullptr, 0);
  }
}

TEST(CopyWith, MemcpyIsAlwaysSupported) { EXPECT_TRUE(is_supported(CopyMethod::kMemcpy)); }

}  // namespace
}  // namespace gradwire
