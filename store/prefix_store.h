#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/store/interface/forwarding_store.h"

namespace gradwire::store {

// A view of another store that puts "<prefix>/" before every key, so that several users can share one store.
// num_keys() and list_keys() see only the keys under the prefix; list_keys() leaves the prefix out. The
// timeout is copied from the other store at construction and is independent afterwards.
class PrefixStore : public ForwardingStore {
 public:
  // A view of `store`, which it keeps alive. A "/" is put between `prefix` and each key.
  PrefixStore(absl::string_view prefix, std::shared_ptr<Store> store)
      : ForwardingStore(std::move(store)), prefix_(absl::StrCat(prefix, "/")) {}

  // The other store's description and the prefix.
  std::string description() const override {
    return absl::StrCat(underlying()->description(), " under \"", prefix_, "\"");
  }

 private:
  std::string full(absl::string_view key) const override { return absl::StrCat(prefix_, key); }
  absl::StatusOr<std::shared_ptr<Store>> do_clone(absl::Time deadline) override {
    absl::StatusOr<std::shared_ptr<Store>> copy = underlying()->try_clone(deadline - clock().now());
    if (!copy.ok()) return copy.status();
    const absl::string_view prefix = absl::string_view(prefix_).substr(0, prefix_.size() - 1);
    return std::make_shared<PrefixStore>(prefix, *std::move(copy));
  }

  const std::string prefix_;
};

}  // namespace gradwire::store
