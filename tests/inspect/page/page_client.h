#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::inspect::testing {

// The address of a page, as it is printed: "http://HOST:PORT/?token=TOKEN".
struct PageUrl {
  explicit PageUrl(absl::string_view url);
  std::string address;
  std::string token;
};

// Asks for the data as the page does. `host`: the header Host.
transport::testing::HttpAnswer get_data(const std::string& address, const std::string& token,
                                        const std::string& host = "127.0.0.1");

}  // namespace gradwire::inspect::testing
