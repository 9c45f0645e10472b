#include "gradwire/tests/inspect/page/page_client.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/transport/http/http_server.h"

namespace gradwire::inspect::testing {

PageUrl::PageUrl(absl::string_view url) {
  absl::ConsumePrefix(&url, "http://");
  constexpr absl::string_view kBetween = "/?token=";
  const std::size_t at = url.find(kBetween);
  if (at == absl::string_view::npos) return;
  address = std::string(url.substr(0, at));
  token = std::string(url.substr(at + kBetween.size()));
}

transport::testing::HttpAnswer get_data(const std::string& address, const std::string& token,
                                        const std::string& host) {
  return transport::testing::http_get(address, "/data",
                                      absl::StrCat(host, "\r\n", transport::kTokenHeader, ": ", token));
}

}  // namespace gradwire::inspect::testing
