#include "gradwire/store/tcp/tcp_store_protocol.h"

#include "absl/strings/string_view.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

Limits store_message_limits() {
  Limits limits;
  limits.max_header_bytes = kMaxMessageBytes;
  limits.max_buffers = 0;
  limits.max_buffer_bytes = 0;
  limits.max_message_bytes = kMaxMessageBytes;
  return limits;
}

void pack_key(absl::string_view key, proto::KeyList& list) {
  list.mutable_keys()->append(key.data(), key.size());
  list.add_sizes(static_cast<uint32_t>(key.size()));
}

void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list) {
  list.mutable_sizes()->Reserve(static_cast<int>(keys.size()));
  for (const std::string& key : keys) pack_key(key, list);
}

// Returns nullopt if the sizes do not match the string, or if there are too many keys.
std::optional<std::vector<std::string>> unpack_keys(const proto::KeyList& list, std::size_t max_keys) {
  if (static_cast<std::size_t>(list.sizes_size()) > max_keys) return std::nullopt;
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(list.sizes_size()));
  absl::string_view left = list.keys();
  for (const uint32_t size : list.sizes()) {
    if (size > left.size()) return std::nullopt;
    keys.emplace_back(left.substr(0, size));
    left.remove_prefix(size);
  }
  if (!left.empty()) return std::nullopt;
  return keys;
}

}  // namespace gradwire::store
