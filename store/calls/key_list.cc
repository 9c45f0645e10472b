#include "gradwire/store/calls/key_list.h"

#include <cstdint>

namespace gradwire::store {

void pack_key(absl::string_view key, proto::KeyList& list) {
  list.mutable_keys()->append(key.data(), key.size());
  list.add_sizes(static_cast<uint32_t>(key.size()));
}

void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list) {
  list.mutable_sizes()->Reserve(static_cast<int>(keys.size()));
  for (const std::string& key : keys) pack_key(key, list);
}

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
