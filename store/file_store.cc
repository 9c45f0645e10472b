#include "gradwire/store/file_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/file/file_table.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {

using proto::FileRecord;
using Append = FileTable::Append;

FileStore::FileStore(std::shared_ptr<FileTable> table, absl::Duration timeout)
    : Store(timeout), table_(std::move(table)) {}

FileStore::FileStore(const std::string& path, std::optional<int> world_size, absl::Duration timeout)
    : FileStore(std::make_shared<FileTable>(path, world_size, Clock::system()), timeout) {
  throw_if_error(table_->start(clock().now() + timeout));
}

absl::StatusOr<std::shared_ptr<FileStore>> FileStore::open(const std::string& path,
                                                           std::optional<int> world_size,
                                                           absl::Duration timeout) {
  auto table = std::make_shared<FileTable>(path, world_size, Clock::system());
  GRADWIRE_RETURN_IF_ERROR(table->start(Clock::system().now() + timeout));
  return std::shared_ptr<FileStore>(new FileStore(std::move(table), timeout));
}

const std::string& FileStore::path() const { return table_->path(); }

std::string FileStore::description() const { return absl::StrCat("FileStore ", path()); }

absl::Status FileStore::do_set(absl::Span<const Entry> entries, absl::Time deadline) {
  return table_->update(deadline, [&](const StoreTable&, Append append) {
    if (entries.size() == 1) return append(FileRecord::SET, entries[0].first, entries[0].second);
    proto::MultiSetRequest all;
    for (const auto& [key, value] : entries) {
      pack_key(key, *all.mutable_keys());
      pack_key(value, *all.mutable_values());
    }
    return append(FileRecord::MULTI_SET, "", all.SerializeAsString());
  });
}

absl::Status FileStore::do_append(absl::string_view key, absl::string_view value, absl::Time deadline) {
  return table_->update(deadline, [&](const StoreTable& table, Append append) -> absl::Status {
    const StoreTable::Value current = table.find(key);
    if (current != nullptr && current->size() + value.size() > kMaxValueBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(description(), ": append: a value of ",
                                                       current->size() + value.size(),
                                                       " bytes is over the limit of ", kMaxValueBytes));
    }
    return append(FileRecord::APPEND, key, value);
  });
}

absl::StatusOr<int64_t> FileStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  int64_t sum = 0;
  GRADWIRE_RETURN_IF_ERROR(
      table_->update(deadline, [&](const StoreTable& table, Append append) -> absl::Status {
        // Compute the sum in a scratch table: the record must be appended to the log first, and that may
        // fail.
        StoreTable scratch;
        StoreTable::Wakeups none;
        if (const StoreTable::Value value = table.find(key); value != nullptr) {
          GRADWIRE_RETURN_IF_ERROR(scratch.set(key, *value, none));
        }
        GRADWIRE_ASSIGN_OR_RETURN(sum, scratch.add(key, n, none));
        return append(FileRecord::SET, key, absl::StrCat(sum));
      }));
  return sum;
}

absl::StatusOr<std::string> FileStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                      absl::string_view desired, absl::Time deadline) {
  std::string current;
  GRADWIRE_RETURN_IF_ERROR(
      table_->update(deadline, [&](const StoreTable& table, Append append) -> absl::Status {
        const StoreTable::Value value = table.find(key);
        const bool matches = value == nullptr ? expected.empty() : *value == expected;
        current = matches ? std::string(desired) : value == nullptr ? std::string(expected) : *value;
        return matches ? append(FileRecord::SET, key, desired) : absl::OkStatus();
      }));
  return current;
}

absl::StatusOr<bool> FileStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  bool existed = false;
  GRADWIRE_RETURN_IF_ERROR(
      table_->update(deadline, [&](const StoreTable& table, Append append) -> absl::Status {
        existed = table.find(key) != nullptr;
        return existed ? append(FileRecord::DELETE, key, "") : absl::OkStatus();
      }));
  return existed;
}

absl::StatusOr<int64_t> FileStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  int64_t count = 0;
  GRADWIRE_RETURN_IF_ERROR(table_->update(deadline, [&](const StoreTable& table, Append) {
    count = table.num_keys(prefix);
    return absl::OkStatus();
  }));
  return count;
}

absl::StatusOr<std::vector<std::string>> FileStore::do_list_keys(absl::string_view prefix,
                                                                 absl::Time deadline) {
  std::vector<std::string> keys;
  GRADWIRE_RETURN_IF_ERROR(table_->update(deadline, [&](const StoreTable& table, Append) -> absl::Status {
    GRADWIRE_ASSIGN_OR_RETURN(keys, table.list_keys(prefix));
    return absl::OkStatus();
  }));
  return keys;
}

absl::StatusOr<bool> FileStore::do_check(const std::vector<std::string>& keys, absl::Time deadline) {
  bool all = false;
  GRADWIRE_RETURN_IF_ERROR(table_->update(deadline, [&](const StoreTable& table, Append) {
    all = table.missing(keys).empty();
    return absl::OkStatus();
  }));
  return all;
}

absl::StatusOr<std::vector<std::string>> FileStore::do_wait(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  std::vector<std::string> missing;
  GRADWIRE_RETURN_IF_ERROR(table_
                               ->poll(deadline,
                                      [&](const StoreTable& table) {
                                        missing = table.missing(keys);
                                        return missing.empty();
                                      })
                               .status());
  return missing;
}

absl::StatusOr<Store::Values> FileStore::do_multi_get(const std::vector<std::string>& keys,
                                                      absl::Time deadline) {
  Values result;
  absl::StatusOr<std::vector<StoreTable::Value>> values = std::vector<StoreTable::Value>();
  GRADWIRE_RETURN_IF_ERROR(table_
                               ->poll(deadline,
                                      [&](const StoreTable& table) {
                                        result.missing = table.missing(keys);
                                        if (result.missing.empty()) values = table.find_all(keys);
                                        return result.missing.empty();
                                      })
                               .status());
  GRADWIRE_RETURN_IF_ERROR(values.status());
  result.values = copies_of(*values);
  return result;
}

absl::StatusOr<std::optional<std::string>> FileStore::do_watch(absl::string_view key,
                                                               std::optional<absl::string_view> last_value,
                                                               absl::Time deadline) {
  StoreTable::Value value;
  GRADWIRE_RETURN_IF_ERROR(table_
                               ->poll(deadline,
                                      [&](const StoreTable& table) {
                                        value = table.find(key, last_value);
                                        return value != nullptr;
                                      })
                               .status());
  if (value == nullptr) return std::optional<std::string>();
  return std::optional<std::string>(*value);
}

absl::Status FileStore::do_queue_push(absl::string_view queue, absl::string_view value, absl::Time deadline) {
  return table_->update(
      deadline, [&](const StoreTable&, Append append) { return append(FileRecord::PUSH, queue, value); });
}

// Another process may take the item between the poll and the update; then this one waits again.
absl::StatusOr<std::optional<std::string>> FileStore::do_queue_pop(absl::string_view queue,
                                                                   absl::Time deadline) {
  StoreTable::Value item;
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool found, table_->poll(deadline, [&](const StoreTable& table) {
      return table.queue_len(queue) > 0;
    }));
    if (!found) return std::optional<std::string>();
    GRADWIRE_RETURN_IF_ERROR(table_->update(deadline, [&](const StoreTable& table, Append append) {
      item = table.front(queue);
      return item == nullptr ? absl::OkStatus() : append(FileRecord::POP, queue, "");
    }));
    if (item != nullptr) return std::optional<std::string>(*item);
  }
}

absl::StatusOr<int64_t> FileStore::do_queue_len(absl::string_view queue, absl::Time deadline) {
  int64_t length = 0;
  GRADWIRE_RETURN_IF_ERROR(table_->update(deadline, [&](const StoreTable& table, Append) {
    length = table.queue_len(queue);
    return absl::OkStatus();
  }));
  return length;
}

absl::StatusOr<std::shared_ptr<Store>> FileStore::do_clone(absl::Time) {
  return std::shared_ptr<Store>(new FileStore(table_));
}

}  // namespace gradwire::store
