#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::store {

// A parsed init method.
struct InitUrl {
  enum class Kind { kEnv, kTcp, kMulticast, kFile };

  Kind kind = Kind::kEnv;
  Endpoint endpoint;  // kTcp, kMulticast.
  std::string path;   // kFile; absolute.
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Parses an init method. InvalidArgument, with the text and the valid forms, for malformed text.
absl::StatusOr<InitUrl> parse_init_url(absl::string_view text);

}  // namespace gradwire::store
