#include "gradwire/tools/inspect/web/page_http.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/web/page.h"

namespace gradwire::inspect {

absl::StatusOr<std::unique_ptr<transport::HttpServer>> start_page_http(const std::string& listen,
                                                                       bool insecure,
                                                                       const security::Secret& token,
                                                                       std::function<std::string()> data) {
  if (absl::StartsWith(listen, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat("malformed address of the page: got \"", listen,
                                                   "\", expected \"HOST:PORT\", which a browser can open"));
  }
  const transport::HttpOptions options = {
      .address = listen,
      .insecure = insecure,
      .consent = "--insecure",
      .headers = {{"Content-Security-Policy", page_policy()},
                  {"Referrer-Policy", "no-referrer"},
                  {"X-Frame-Options", "DENY"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cross-Origin-Resource-Policy", "same-origin"}},
      .only_own_host = true,
  };
  using TokenIn = transport::HttpPage::TokenIn;
  return transport::HttpServer::start(options, {{"/",
                                                 {.type = "text/html; charset=utf-8",
                                                  .make = [] { return page_html(); },
                                                  .token = token,
                                                  .token_in = TokenIn::kQuery}},
                                                {"/data",
                                                 {.type = "application/json",
                                                  .make = std::move(data),
                                                  .token = token,
                                                  .token_in = TokenIn::kHeader}}});
}

}  // namespace gradwire::inspect
