#include "gradwire/tools/inspect/web/page.h"

#include <openssl/sha.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/inspect/web/page_parts.h"

namespace gradwire::inspect {
namespace {

// A source of a Content-Security-Policy: the hash of the text between the tags.
std::string hash_source(absl::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest = {};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return absl::StrCat(
      "'sha256-",
      absl::Base64Escape(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())),
      "'");
}

const std::string& script() {
  static const std::string text = absl::StrCat(kPageElements, kPageGraph, kPageCharts, kPageMain);
  return text;
}

}  // namespace

const std::string& page_html() {
  static const std::string html =
      absl::StrCat(kPageHead, "<style>", kPageStyle, "</style>\n</head>\n", kPageBody, "<script>", script(),
                   "</script>\n</body>\n</html>\n");
  return html;
}

const std::string& page_policy() {
  static const std::string policy = absl::StrCat(
      "default-src 'none'; script-src ", hash_source(script()), "; style-src ", hash_source(kPageStyle),
      "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  return policy;
}

}  // namespace gradwire::inspect
