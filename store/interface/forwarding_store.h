#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/interface/store.h"

namespace gradwire::store {

// Forwards every call to another store. A derived class can put a prefix before the keys. The timeout is
// copied from the other store at construction and is independent afterwards. Thread-safe.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store)
      : Store(store->timeout()), store_(std::move(store)) {}

  const std::shared_ptr<Store>& underlying() const { return store_; }
  std::string description() const override { return store_->description(); }

 protected:
  // Returns the name of this key, key prefix or queue in the other store. It ends with `key`, and begins with
  // full("").
  virtual std::string full(absl::string_view key) const { return std::string(key); }

  GRADWIRE_STORE_OPERATIONS_;

 private:
  // The other store refuses the call.
  bool works_in_children() const override { return true; }
  std::vector<std::string> full_all(const std::vector<std::string>& keys) const;
  absl::Duration left(absl::Time deadline) const { return deadline - clock().now(); }

  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire::store
