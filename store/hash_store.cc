#include "gradwire/store/hash_store.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/store/memory/shared_table.h"

namespace gradwire::store {
namespace {

// A value that was waited for; nullopt after the deadline.
std::optional<std::string> value_of(const SharedTable::Waited& waited) {
  return waited.value == nullptr ? std::nullopt : std::optional<std::string>(*waited.value);
}

bool accept(StoreTable&) { return true; }

}  // namespace

HashStore::HashStore(absl::Duration timeout, Clock& clock)
    : Store(timeout, clock), table_(std::make_shared<SharedTable>(clock)) {}

HashStore::HashStore(std::shared_ptr<SharedTable> table, Clock& clock)
    : Store(kDefaultTimeout, clock), table_(std::move(table)) {}

std::size_t HashStore::waiting() { return table_->waiting(); }

absl::Status HashStore::do_set(absl::Span<const Entry> entries, absl::Time) {
  absl::Status status;
  table_->run([&](StoreTable& table, StoreTable::Wakeups& wakeups) {
    status = entries.size() == 1 ? table.set(entries[0].first, entries[0].second, wakeups)
                                 : table.set_all(entries, wakeups);
  });
  return status;
}

absl::Status HashStore::do_append(absl::string_view key, absl::string_view value, absl::Time) {
  absl::Status status;
  table_->run(
      [&](StoreTable& table, StoreTable::Wakeups& wakeups) { status = table.append(key, value, wakeups); });
  return status;
}

absl::StatusOr<int64_t> HashStore::do_add(absl::string_view key, int64_t n, absl::Time) {
  absl::StatusOr<int64_t> sum = 0;
  table_->run([&](StoreTable& table, StoreTable::Wakeups& wakeups) { sum = table.add(key, n, wakeups); });
  return sum;
}

absl::StatusOr<std::string> HashStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                      absl::string_view desired, absl::Time) {
  absl::StatusOr<std::string> current = "";
  table_->run([&](StoreTable& table, StoreTable::Wakeups& wakeups) {
    current = table.compare_set(key, expected, desired, wakeups);
  });
  return current;
}

absl::StatusOr<bool> HashStore::do_delete_key(absl::string_view key, absl::Time) {
  bool existed = false;
  table_->run([&](StoreTable& table, StoreTable::Wakeups&) { existed = table.erase(key); });
  return existed;
}

absl::StatusOr<int64_t> HashStore::do_num_keys(absl::string_view prefix, absl::Time) {
  int64_t count = 0;
  table_->run([&](StoreTable& table, StoreTable::Wakeups&) { count = table.num_keys(prefix); });
  return count;
}

absl::StatusOr<std::vector<std::string>> HashStore::do_list_keys(absl::string_view prefix, absl::Time) {
  absl::StatusOr<std::vector<std::string>> keys = std::vector<std::string>();
  table_->run([&](StoreTable& table, StoreTable::Wakeups&) { keys = table.list_keys(prefix); });
  return keys;
}

absl::StatusOr<bool> HashStore::do_check(const std::vector<std::string>& keys, absl::Time) {
  bool all = false;
  table_->run([&](StoreTable& table, StoreTable::Wakeups&) { all = table.missing(keys).empty(); });
  return all;
}

absl::StatusOr<std::vector<std::string>> HashStore::do_wait(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  return table_
      ->wait([&](StoreTable& table, uint64_t id, SharedTable::Waited&) { return table.wait(id, keys); },
             accept, deadline)
      .missing;
}

// Between the wake-up and the moment when this thread has the lock again, a key may have been deleted. Then
// the wait begins again.
absl::StatusOr<Store::Values> HashStore::do_multi_get(const std::vector<std::string>& keys,
                                                      absl::Time deadline) {
  absl::StatusOr<std::vector<StoreTable::Value>> values = std::vector<StoreTable::Value>();
  const auto read = [&](StoreTable& table) {
    if (!table.missing(keys).empty()) return false;
    values = table.find_all(keys);
    return true;
  };
  SharedTable::Waited waited =
      table_->wait([&](StoreTable& table, uint64_t id,
                       SharedTable::Waited&) { return table.wait(id, keys) && read(table); },
                   read, deadline);
  GRADWIRE_RETURN_IF_ERROR(values.status());
  return Values{copies_of(*values), std::move(waited.missing)};
}

absl::StatusOr<std::optional<std::string>> HashStore::do_watch(absl::string_view key,
                                                               std::optional<absl::string_view> last_value,
                                                               absl::Time deadline) {
  return value_of(table_->wait(
      [&](StoreTable& table, uint64_t id, SharedTable::Waited& waited) {
        waited.value = table.watch(id, key, last_value);
        return waited.value != nullptr;
      },
      accept, deadline));
}

absl::Status HashStore::do_queue_push(absl::string_view queue, absl::string_view value, absl::Time) {
  absl::Status status;
  table_->run(
      [&](StoreTable& table, StoreTable::Wakeups& wakeups) { status = table.push(queue, value, wakeups); });
  return status;
}

absl::StatusOr<std::optional<std::string>> HashStore::do_queue_pop(absl::string_view queue,
                                                                   absl::Time deadline) {
  return value_of(table_->wait(
      [&](StoreTable& table, uint64_t id, SharedTable::Waited& waited) {
        waited.value = table.wait_for_item(id, queue);
        return waited.value != nullptr;
      },
      accept, deadline));
}

absl::StatusOr<int64_t> HashStore::do_queue_len(absl::string_view queue, absl::Time) {
  int64_t length = 0;
  table_->run([&](StoreTable& table, StoreTable::Wakeups&) { length = table.queue_len(queue); });
  return length;
}

absl::StatusOr<std::shared_ptr<Store>> HashStore::do_clone(absl::Time) {
  return std::shared_ptr<Store>(new HashStore(table_, clock()));
}

}  // namespace gradwire::store
