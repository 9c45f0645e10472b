#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/store/interface/store.h"

namespace gradwire::store {

class SharedTable;

// A store in the memory of one process: for several agents in one program, and for tests. Its clones share
// the table, which exists as long as the last of them.
class HashStore : public Store {
 public:
  // Creates an empty table. `clock` must outlive the store and its clones.
  explicit HashStore(absl::Duration timeout = kDefaultTimeout, Clock& clock = Clock::system());

  std::string description() const override { return "HashStore"; }
  // Number of calls that are waiting for a key or an item now, also those of clones.
  std::size_t waiting();

 private:
  HashStore(std::shared_ptr<SharedTable> table, Clock& clock);

  GRADWIRE_STORE_OPERATIONS_;

  const std::shared_ptr<SharedTable> table_;
};

}  // namespace gradwire::store
