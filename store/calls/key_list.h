#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/interface/limits.h"

// Lists of keys and of values in messages (proto/store.proto, KeyList).
namespace gradwire::store {

// Appends one key, or value, to the list.
void pack_key(absl::string_view key, proto::KeyList& list);
void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list);
// Returns nullopt if the sizes do not match the keys, or if there are more than `max_keys` keys.
std::optional<std::vector<std::string>> unpack_keys(const proto::KeyList& list,
                                                    std::size_t max_keys = kMaxKeysPerWait);

}  // namespace gradwire::store
