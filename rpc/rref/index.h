#pragma once

#include <utility>

// An index of a table: a map from a key to the set of the table's entries with this key. No set is empty.
namespace gradwire::rpc {

// Removes `value` from the set of `key`.
template <class Index, class Key, class Value>
void remove_from(Index& index, const Key& key, const Value& value) {
  auto entry = index.find(key);
  if (entry == index.end()) return;
  entry->second.erase(value);
  if (entry->second.empty()) index.erase(entry);
}

// Removes the set of `key` and returns it; returns an empty set if the index has no such key.
template <class Index, class Key>
typename Index::mapped_type take_from(Index& index, const Key& key) {
  auto entry = index.extract(key);
  return entry.empty() ? typename Index::mapped_type() : std::move(entry.mapped());
}

}  // namespace gradwire::rpc
