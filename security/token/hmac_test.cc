#include <string>

#include "absl/strings/escaping.h"
#include "gradwire/security/token/token_handshake.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

// Cases 1, 2 and 6 of RFC 4231.
TEST(Hmac, HasTheValuesOfTheStandard) {
  const auto hex = [](const std::string& key, const std::string& message) {
    return absl::BytesToHexString(view(hmac_sha256(Secret(key), message)));
  };
  EXPECT_EQ(hex(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace gradwire::security
