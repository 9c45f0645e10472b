#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/proto/store.pb.h"
#include "gradwire/security/limits.h"

// The part of a TcpStore's protocol (proto/store.proto) that client and server share.
namespace gradwire::store {

inline constexpr uint64_t kStoreMagic = 0x677773746f726531;
inline constexpr uint32_t kStoreVersion = 1;

// Limits that a message is checked against before memory is allocated for it.
Limits store_message_limits();

void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list);
// Returns nullopt if the sizes do not match the keys, or if there are more than kMaxKeysPerWait keys.
std::optional<std::vector<std::string>> unpack_keys(const proto::KeyList& list);

}  // namespace gradwire::store
