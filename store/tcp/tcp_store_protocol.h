#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/security/limits.h"
#include "gradwire/store/memory/limits.h"

// The part of a TcpStore's protocol (proto/store.proto) that client and server share.
namespace gradwire::store {

inline constexpr uint64_t kStoreMagic = 0x677773746f726531;
inline constexpr uint32_t kStoreVersion = 1;

// Limits that a message is checked against before memory is allocated for it.
Limits store_message_limits();

// Appends one key, or value, to the list.
void pack_key(absl::string_view key, proto::KeyList& list);
void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list);
// Returns nullopt if the sizes do not match the keys, or if there are more than `max_keys` keys.
std::optional<std::vector<std::string>> unpack_keys(const proto::KeyList& list,
                                                    std::size_t max_keys = kMaxKeysPerWait);

}  // namespace gradwire::store
