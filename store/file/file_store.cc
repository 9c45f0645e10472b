// A FileStore is a table in memory, and a log of all changes in the file. Each operation brings the table
// up to date from the log first (catch_up_locked). A change is decided from the table and appended to the
// log while the exclusive lock is held, so that all processes apply the same changes in the same order.
// Waits poll the size of the file.

#include "gradwire/store/file_store.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/store.pb.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kMinPollInterval = absl::Milliseconds(1);
constexpr absl::Duration kMaxPollInterval = absl::Milliseconds(20);
// How long the destructor tries to write LEAVE into the file.
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

void FileStore::reset_locked() {
  table_ = std::make_unique<StoreTable>();
  joins_ = 0;
  leaves_ = 0;
}

absl::Status FileStore::start(absl::Time deadline) {
  if (world_size_.has_value() && *world_size_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(description(), ": world size must not be negative, got ", *world_size_));
  }
  MutexLock lock(mutex_);
  log_ = std::make_unique<FileLog>();
  process_ = getpid();
  reset_locked();
  GRADWIRE_RETURN_IF_ERROR(log_->open(path_, clock(), deadline));
  absl::Status status = begin_locked(deadline);
  log_->unlock();
  return status;
}

absl::Status FileStore::begin_locked(absl::Time deadline) {
  absl::Status status = catch_up_locked();
  if (!world_size_.has_value()) return status;
  if (log_->is_alone()) {
    // Being alone means that the file is left over from an earlier job, with one exception.
    // With N processes, one may have opened and closed the file before the others have opened it. Its keys
    // must be kept.
    const bool early = *world_size_ > 0 && joins_ < *world_size_ && joins_ == leaves_;
    if (!status.ok() || !early) {
      reset_locked();
      status = log_->clear();
    }
  }
  if (status.ok()) status = append_locked(proto::FileRecord::JOIN, "", "");
  joined_ = status.ok();
  return status;
}

// A forked child must not write LEAVE: its parent is still a member.
void FileStore::finish() {
  MutexLock lock(mutex_);
  if (!joined_ || process_ != getpid()) return;
  // If LEAVE cannot be written, this store counts as one that died. The next job empties the file in both
  // cases.
  if (!log_->lock(/*exclusive=*/true, clock(), clock().now() + kLeaveTime).ok()) return;
  absl::Status status = catch_up_locked();
  if (status.ok()) status = append_locked(proto::FileRecord::LEAVE, "", "");
  if (joins_ >= *world_size_ && log_->is_alone()) log_->remove();
  log_->unlock();
}

absl::Status FileStore::reopen_after_fork_locked(absl::Time deadline) {
  if (process_ == getpid()) return absl::OkStatus();
  process_ = getpid();
  // The parent has written JOIN, and it will write LEAVE.
  joined_ = false;
  reset_locked();
  // Closing the inherited descriptor does not release the parent's locks.
  log_ = std::make_unique<FileLog>();
  GRADWIRE_RETURN_IF_ERROR(log_->open(path_, clock(), deadline));
  log_->unlock();
  return absl::OkStatus();
}

absl::Status FileStore::catch_up_locked() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> bodies, log_->read());
  for (const std::string& body : bodies) {
    proto::FileRecord record;
    if (!record.ParseFromString(body)) {
      return absl::InvalidArgumentError(absl::StrCat(description(), ": malformed record in the file"));
    }
    apply_locked(record.kind(), record.key(), record.value());
  }
  return absl::OkStatus();
}

void FileStore::apply_locked(int kind, absl::string_view key, absl::string_view value) {
  StoreTable::Wakeups none;  // Waits are implemented by polling, so the table has no waiters.
  switch (kind) {
    case proto::FileRecord::SET:
      // set() cannot fail: the log has the same size limit as the table.
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

// First the file, then the table: if the file cannot be written, the change has not happened.
absl::Status FileStore::append_locked(int kind, absl::string_view key, absl::string_view value) {
  proto::FileRecord record;
  record.set_kind(static_cast<proto::FileRecord::Kind>(kind));
  record.set_key(std::string(key));
  record.set_value(std::string(value));
  GRADWIRE_RETURN_IF_ERROR(log_->append(record.SerializeAsString()));
  apply_locked(kind, key, value);
  return absl::OkStatus();
}

// Read, decide and write under one exclusive lock: this makes the operation atomic among processes.
absl::Status FileStore::update(absl::Time deadline, absl::FunctionRef<absl::Status()> change) {
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(reopen_after_fork_locked(deadline));
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock(), deadline));
  absl::Status status = catch_up_locked();
  if (status.ok()) status = change();
  log_->unlock();
  // Threads of this process that wait need not wait for their next poll.
  changed_.notify_all();
  return status;
}

absl::Status FileStore::read_changes_locked(absl::Time deadline) {
  // Waiting processes read at the same time, so they share the lock.
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/false, clock(), deadline));
  absl::Status status = catch_up_locked();
  const bool torn = status.ok() && log_->has_torn_tail();
  log_->unlock();
  if (!torn) return status;
  // Cut off the torn tail. Otherwise every poll of every process would find a change and read the file again,
  // until some process writes.
  // The lock was released in between, so read again: another process may have cut off the tail or written
  // behind it.
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock(), deadline));
  status = catch_up_locked();
  if (status.ok()) status = log_->cut_off_tail();
  log_->unlock();
  return status;
}

absl::StatusOr<bool> FileStore::poll(absl::Time deadline, absl::FunctionRef<bool()> found) {
  absl::Duration pause = kMinPollInterval;
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(reopen_after_fork_locked(deadline));
  while (true) {
    // Without a lock: it compares the size of the file with what was read.
    if (log_->has_changes()) {
      GRADWIRE_RETURN_IF_ERROR(read_changes_locked(deadline));
      pause = kMinPollInterval;
    }
    if (found()) return true;
    const absl::Time now = clock().now();
    if (now >= deadline) return false;
    clock().wait_until(mutex_, changed_, std::min(deadline, now + pause));
    pause = std::min(pause * 2, kMaxPollInterval);
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
    // Compute the sum in a scratch table: the record must be appended to the log first, and that may fail.
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
