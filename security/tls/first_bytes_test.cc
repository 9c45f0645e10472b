#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/security/tls/tls_handshake.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  return std::string("GWa1\5\0", 6) + static_cast<char>(text.size() % 256) +
         static_cast<char>(text.size() / 256) + text;
}

// "": TLS. "more": more bytes are needed.
std::string judge(const std::string& bytes, bool ended = false) {
  const std::optional<absl::Status> judged = judge_first_bytes(bytes, ended, "host:1");
  if (!judged.has_value()) return "more";
  EXPECT_TRUE(judged->ok() || absl::IsUnauthenticated(*judged));
  return std::string(judged->message());
}

TEST(FirstBytes, RecordsOfHandshakesAndAlertsAreTls) {
  EXPECT_EQ(judge(""), "more");
  EXPECT_EQ(judge("\x16"), "more");
  EXPECT_EQ(judge("\x16\x03"), "");
  EXPECT_EQ(judge("\x15\x03\x03"), "");
  EXPECT_THAT(judge("\x16\x04"), HasSubstr("does not speak TLS"));
  EXPECT_THAT(judge("\x16", true), HasSubstr("does not speak TLS"));
  EXPECT_THAT(judge("\x17\x03\x03"), HasSubstr("does not speak TLS"));
}

TEST(FirstBytes, OtherProtocolsAreShownEscaped) {
  EXPECT_THAT(judge("HTTP/1.1 400 Bad Request\r\n"), HasSubstr("its first bytes are \"HTTP/1.1 400 Bad\""));
  EXPECT_THAT(judge(std::string("GWt1\x1b\0", 6)), HasSubstr("\"GWt1\\x1b\\x00\""));
  EXPECT_THAT(judge("x"), HasSubstr("TLS with host:1 failed"));
}

TEST(FirstBytes, TextOfARefusalIsShownEscaped) {
  const std::string record = refusal("no certificates\x1b[2J here");
  for (size_t size = 1; size < record.size(); ++size)
    EXPECT_EQ(judge(record.substr(0, size)), "more") << size;
  const std::string expected =
      "TLS with host:1 failed: the peer refused the connection: no certificates\\x1b[2J here";
  EXPECT_EQ(judge(record), expected);
  EXPECT_EQ(judge(record + "more"), expected);
  EXPECT_THAT(judge(record.substr(0, 20), true), HasSubstr("refused the connection: no certifica"));
  EXPECT_THAT(judge(record.substr(0, 6), true), HasSubstr("does not speak TLS"));
  EXPECT_THAT(judge(refusal(std::string(512, 'x'))), HasSubstr(std::string(512, 'x')));
}

TEST(FirstBytes, MalformedRefusalIsNotTls) {
  EXPECT_THAT(judge(refusal(std::string(513, 'x'))), HasSubstr("does not speak TLS"));
  std::string record = refusal("x");
  record[4] = 1;
  EXPECT_THAT(judge(record), HasSubstr("does not speak TLS"));
  record = refusal("x");
  record[5] = 1;
  EXPECT_THAT(judge(record), HasSubstr("does not speak TLS"));
}

}  // namespace
}  // namespace gradwire::security
