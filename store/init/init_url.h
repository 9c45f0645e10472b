#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/tcp/endpoint.h"

namespace gradwire::store {

// An init method taken apart.
struct InitUrl {
  enum class Kind { kEnv, kTcp, kMulticast, kFile };

  Kind kind = Kind::kEnv;
  Endpoint endpoint;  // kTcp, kMulticast.
  std::string path;   // kFile; absolute.
  std::optional<int> rank;
  std::optional<int> world_size;
};

// InvalidArgument, naming the text and the forms there are, for anything else.
absl::StatusOr<InitUrl> parse_init_url(absl::string_view text);

}  // namespace gradwire::store
