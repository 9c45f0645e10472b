#include "gradwire/tools/inspect/web/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gradwire::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The text between the only two tags of this name.
std::string between(const std::string& tag) {
  const std::string& html = page_html();
  const std::string open = absl::StrCat("<", tag, ">"), close = absl::StrCat("</", tag, ">");
  const std::size_t begin = html.find(open);
  EXPECT_NE(begin, std::string::npos);
  EXPECT_EQ(html.find(open, begin + 1), std::string::npos);
  return html.substr(begin + open.size(), html.find(close, begin) - begin - open.size());
}

std::string hash_of(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EXPECT_EQ(EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr), 1);
  return absl::StrCat("'sha256-", absl::Base64Escape({reinterpret_cast<char*>(digest), size}), "'");
}

TEST(Page, PolicyAllowsOnlyItsOwnParts) {
  EXPECT_THAT(page_policy(), HasSubstr("default-src 'none';"));
  EXPECT_THAT(page_policy(), HasSubstr(absl::StrCat("script-src ", hash_of(between("script")), ";")));
  EXPECT_THAT(page_policy(), HasSubstr(absl::StrCat("style-src ", hash_of(between("style")), ";")));
  EXPECT_THAT(page_policy(), HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(page_policy(), Not(HasSubstr("unsafe")));
}

TEST(Page, HasNothingFromElsewhereAndNoHtmlFromText) {
  // The only address in it is the name of SVG's namespace.
  std::string html = page_html();
  const std::string name = "http://www.w3.org/2000/svg";
  ASSERT_THAT(html, HasSubstr(name));
  html.erase(html.find(name), name.size());
  for (const char* part :
       {"http:", "https:", "//cdn", "@import", "url(", "src=", "innerHTML", "outerHTML", "insertAdjacentHTML",
        "document.write", "eval(", "new Function", " style=", "onclick=", "onload="}) {
    EXPECT_THAT(html, Not(HasSubstr(part)));
  }
}

}  // namespace
}  // namespace gradwire::inspect
