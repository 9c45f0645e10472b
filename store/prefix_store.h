#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::store {

// Another store with "<prefix>/" before every key: several users of one store keep apart. num_keys counts the
// keys under the prefix alone. Begins with the other store's timeout and has its own from then on.
class PrefixStore : public Store {
 public:
  PrefixStore(absl::string_view prefix, std::shared_ptr<Store> store);

  const std::shared_ptr<Store>& underlying() const { return store_; }
  std::string description() const override;

 private:
  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override;
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override;
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override;
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override;

  std::string full(absl::string_view key) const;
  absl::Duration left(absl::Time deadline) const;

  const std::string prefix_;
  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire::store
