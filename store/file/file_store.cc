#include "gradwire/store/file_store.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/store.pb.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kShortestPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
// How long a store that is being destroyed tries to say so in the file.
constexpr absl::Duration kLeaveTime = absl::Seconds(2);

}  // namespace

FileStore::FileStore(Unopened, const std::string& path, std::optional<int> world_size, absl::Duration timeout)
    : Store(timeout), path_(path), world_size_(world_size) {}

FileStore::FileStore(const std::string& path, std::optional<int> world_size, absl::Duration timeout)
    : FileStore(Unopened{}, path, world_size, timeout) {
  throw_if_error(start(clock().now() + timeout));
}

absl::StatusOr<std::shared_ptr<FileStore>> FileStore::open(const std::string& path,
                                                           std::optional<int> world_size,
                                                           absl::Duration timeout) {
  std::shared_ptr<FileStore> store(new FileStore(Unopened{}, path, world_size, timeout));
  GRADWIRE_RETURN_IF_ERROR(store->start(store->clock().now() + timeout));
  return store;
}

FileStore::~FileStore() { finish(); }

std::string FileStore::description() const { return absl::StrCat("FileStore ", path_); }

void FileStore::forget_locked() {
  table_ = std::make_unique<StoreTable>();
  joins_ = 0;
  leaves_ = 0;
}

absl::Status FileStore::start(absl::Time deadline) {
  if (world_size_.has_value() && *world_size_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world size of ", *world_size_, " for the ", description(), " is negative"));
  }
  MutexLock lock(mutex_);
  log_ = std::make_unique<FileLog>();
  process_ = getpid();
  forget_locked();
  GRADWIRE_RETURN_IF_ERROR(log_->open(path_, clock(), deadline));
  absl::Status status = begin_locked(deadline);
  log_->unlock();
  return status;
}

absl::Status FileStore::begin_locked(absl::Time deadline) {
  absl::Status status = catch_up_locked();
  if (!world_size_.has_value()) return status;
  if (log_->is_alone()) {
    // With N processes one may have come and gone, in order, before the others are there: then its keys
    // count.
    const bool early = *world_size_ > 0 && joins_ < *world_size_ && joins_ == leaves_;
    if (!status.ok() || !early) {
      forget_locked();
      status = log_->clear();
    }
  }
  if (status.ok()) status = append_locked(proto::FileRecord::JOIN, "", "");
  joined_ = status.ok();
  return status;
}

void FileStore::finish() {
  MutexLock lock(mutex_);
  if (!joined_ || process_ != getpid()) return;
  // A store that cannot say that it left is taken for one that died; the next job begins afresh either way.
  if (!log_->lock(/*exclusive=*/true, clock(), clock().now() + kLeaveTime).ok()) return;
  absl::Status status = catch_up_locked();
  if (status.ok()) status = append_locked(proto::FileRecord::LEAVE, "", "");
  if (joins_ >= *world_size_ && log_->is_alone()) log_->remove();
  log_->unlock();
}

absl::Status FileStore::reopen_after_fork_locked(absl::Time deadline) {
  if (process_ == getpid()) return absl::OkStatus();
  process_ = getpid();
  joined_ = false;
  forget_locked();
  log_ =
      std::make_unique<FileLog>();  // Closing the old one's descriptor leaves the parent's locks as they are.
  GRADWIRE_RETURN_IF_ERROR(log_->open(path_, clock(), deadline));
  log_->unlock();
  return absl::OkStatus();
}

absl::Status FileStore::catch_up_locked() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> bodies, log_->read());
  for (const std::string& body : bodies) {
    proto::FileRecord record;
    if (!record.ParseFromString(body)) {
      return absl::InvalidArgumentError(absl::StrCat(description(), " holds a record that cannot be read"));
    }
    apply_locked(record.kind(), record.key(), record.value());
  }
  return absl::OkStatus();
}

void FileStore::apply_locked(int kind, absl::string_view key, absl::string_view value) {
  StoreTable::Wakeups none;  // Waits are polled for, so the table has no waiters.
  switch (kind) {
    case proto::FileRecord::SET:
      // Cannot be refused: the log's limit is the table's.
      table_->set(key, value, none).IgnoreError();
      break;
    case proto::FileRecord::DELETE:
      table_->erase(key);
      break;
    case proto::FileRecord::JOIN:
      ++joins_;
      break;
    case proto::FileRecord::LEAVE:
      ++leaves_;
      break;
    default:
      break;
  }
}

absl::Status FileStore::append_locked(int kind, absl::string_view key, absl::string_view value) {
  proto::FileRecord record;
  record.set_kind(static_cast<proto::FileRecord::Kind>(kind));
  record.set_key(std::string(key));
  record.set_value(std::string(value));
  GRADWIRE_RETURN_IF_ERROR(log_->append(record.SerializeAsString()));
  apply_locked(kind, key, value);
  return absl::OkStatus();
}

absl::Status FileStore::update(absl::Time deadline, absl::FunctionRef<absl::Status()> change) {
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(reopen_after_fork_locked(deadline));
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock(), deadline));
  absl::Status status = catch_up_locked();
  if (status.ok()) status = change();
  log_->unlock();
  changed_.notify_all();
  return status;
}

absl::Status FileStore::read_news_locked(absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/false, clock(), deadline));
  absl::Status status = catch_up_locked();
  const bool torn = status.ok() && log_->has_torn_tail();
  log_->unlock();
  if (!torn) return status;
  // A tail that stays would be news each time that this or another process polls, until somebody writes.
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock(), deadline));
  status = catch_up_locked();
  if (status.ok()) status = log_->cut_off_tail();
  log_->unlock();
  return status;
}

absl::StatusOr<bool> FileStore::poll(absl::Time deadline, absl::FunctionRef<bool()> found) {
  absl::Duration pause = kShortestPause;
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(reopen_after_fork_locked(deadline));
  while (true) {
    if (log_->has_news()) {
      GRADWIRE_RETURN_IF_ERROR(read_news_locked(deadline));
      pause = kShortestPause;
    }
    if (found()) return true;
    const absl::Time now = clock().now();
    if (now >= deadline) return false;
    clock().wait_until(mutex_, changed_, std::min(deadline, now + pause));
    pause = std::min(pause * 2, kLongestPause);
  }
}

absl::Status FileStore::do_set(absl::string_view key, absl::string_view value, absl::Time deadline) {
  return update(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return append_locked(proto::FileRecord::SET, key, value);
  });
}

absl::StatusOr<int64_t> FileStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  int64_t sum = 0;
  GRADWIRE_RETURN_IF_ERROR(update(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    // The sum is reckoned in a table of its own: the log comes first, and may refuse.
    StoreTable scratch;
    StoreTable::Wakeups none;
    if (const StoreTable::Value value = table_->find(key); value != nullptr) {
      GRADWIRE_RETURN_IF_ERROR(scratch.set(key, *value, none));
    }
    GRADWIRE_ASSIGN_OR_RETURN(sum, scratch.add(key, n, none));
    return append_locked(proto::FileRecord::SET, key, absl::StrCat(sum));
  }));
  return sum;
}

absl::StatusOr<std::string> FileStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                      absl::string_view desired, absl::Time deadline) {
  std::string current;
  GRADWIRE_RETURN_IF_ERROR(update(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    const StoreTable::Value value = table_->find(key);
    const bool matches = value == nullptr ? expected.empty() : *value == expected;
    current = matches ? std::string(desired) : value == nullptr ? std::string(expected) : *value;
    return matches ? append_locked(proto::FileRecord::SET, key, desired) : absl::OkStatus();
  }));
  return current;
}

absl::StatusOr<bool> FileStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  bool existed = false;
  GRADWIRE_RETURN_IF_ERROR(update(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    existed = table_->find(key) != nullptr;
    return existed ? append_locked(proto::FileRecord::DELETE, key, "") : absl::OkStatus();
  }));
  return existed;
}

absl::StatusOr<int64_t> FileStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  int64_t count = 0;
  GRADWIRE_RETURN_IF_ERROR(update(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count = table_->num_keys(prefix);
    return absl::OkStatus();
  }));
  return count;
}

absl::StatusOr<std::vector<std::string>> FileStore::do_wait(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  std::vector<std::string> missing;
  GRADWIRE_RETURN_IF_ERROR(poll(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                             missing = table_->missing(keys);
                             return missing.empty();
                           }).status());
  return missing;
}

absl::StatusOr<std::optional<std::string>> FileStore::do_watch(absl::string_view key,
                                                               std::optional<absl::string_view> last_value,
                                                               absl::Time deadline) {
  StoreTable::Value value;
  GRADWIRE_RETURN_IF_ERROR(poll(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                             value = table_->find_other(key, last_value);
                             return value != nullptr;
                           }).status());
  if (value == nullptr) return std::optional<std::string>();
  return std::optional<std::string>(*value);
}

}  // namespace gradwire::store
