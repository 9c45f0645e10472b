#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/store/memory/forwarding_store.h"

namespace gradwire::store {

// Another store with "<prefix>/" before every key: several users of one store keep apart. num_keys counts the
// keys under the prefix alone. Begins with the other store's timeout and has its own from then on.
class PrefixStore : public ForwardingStore {
 public:
  // A view of `store`, which it keeps alive. A "/" is put between `prefix` and each key.
  PrefixStore(absl::string_view prefix, std::shared_ptr<Store> store)
      : ForwardingStore(std::move(store)), prefix_(absl::StrCat(prefix, "/")) {}

  // The other store's, with the prefix.
  std::string description() const override {
    return absl::StrCat(underlying()->description(), " under \"", prefix_, "\"");
  }

 private:
  std::string full(absl::string_view key) const override { return absl::StrCat(prefix_, key); }

  const std::string prefix_;
};

}  // namespace gradwire::store
