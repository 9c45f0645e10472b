// A FileTable is a table in memory, and a log of all changes in the file. Each operation brings the table
// up to date from the log first (catch_up_locked). A change is decided from the table and appended to the
// log while the exclusive lock is held, so that all processes apply the same changes in the same order.
// Waits poll the size of the file.

#include "gradwire/store/file/file_table.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/calls/key_list.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kMinPollInterval = absl::Milliseconds(1);
constexpr absl::Duration kMaxPollInterval = absl::Milliseconds(20);
// How long the destructor tries to write LEAVE into the file.
constexpr absl::Duration kLeaveTime = absl::Seconds(2);

// Applies the MultiSetRequest of a record. Returns false, and changes nothing, if it is malformed.
bool set_all(StoreTable& table, absl::string_view request) {
  proto::MultiSetRequest all;
  if (!all.ParseFromArray(request.data(), static_cast<int>(request.size()))) return false;
  const std::optional<std::vector<std::string>> keys = unpack_keys(all.keys());
  const std::optional<std::vector<std::string>> values = unpack_keys(all.values());
  if (!keys.has_value() || !values.has_value() || keys->size() != values->size()) return false;
  std::vector<StoreTable::Entry> entries;
  for (std::size_t i = 0; i < keys->size(); ++i) entries.emplace_back((*keys)[i], (*values)[i]);
  StoreTable::Wakeups none;
  return table.set_all(entries, none).ok();
}

}  // namespace

FileTable::FileTable(std::string path, std::optional<int> world_size, Clock& clock)
    : path_(std::move(path)), world_size_(world_size), clock_(clock) {}

FileTable::~FileTable() {
  delete of_child_.load();
  finish();
}

std::string FileTable::name() const { return absl::StrCat("FileStore ", path_); }

void FileTable::reset_locked() {
  // The size of the log bounds the table. It must not refuse a record that is in the log.
  table_ = std::make_unique<StoreTable>(std::numeric_limits<std::size_t>::max() / 2);
  joins_ = 0;
  leaves_ = 0;
}

absl::Status FileTable::start(absl::Time deadline) {
  if (world_size_.has_value() && *world_size_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": world size must not be negative, got ", *world_size_));
  }
  MutexLock lock(mutex_);
  log_ = std::make_unique<FileLog>();
  reset_locked();
  GRADWIRE_RETURN_IF_ERROR(log_->open(path_, clock_, deadline));
  absl::Status status = begin_locked(deadline);
  log_->unlock();
  return status;
}

absl::Status FileTable::begin_locked(absl::Time deadline) {
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
void FileTable::finish() {
  if (!mark_.here()) return;
  MutexLock lock(mutex_);
  if (!joined_) return;
  // If LEAVE cannot be written, this store counts as one that died. The next job empties the file in both
  // cases.
  if (!log_->lock(/*exclusive=*/true, clock_, clock_.now() + kLeaveTime).ok()) return;
  absl::Status status = catch_up_locked();
  if (status.ok()) status = append_locked(proto::FileRecord::LEAVE, "", "");
  if (joins_ >= *world_size_ && log_->is_alone()) log_->remove();
  log_->unlock();
}

// The parent's table may be locked, and its descriptor of the file is closed here. Threads of the child may
// make one at the same time.
absl::StatusOr<FileTable*> FileTable::table_of_child(absl::Time deadline) {
  if (FileTable* const made = of_child_.load()) return made;
  auto fresh = std::make_unique<FileTable>(path_, /*world_size=*/std::nullopt, clock_);
  GRADWIRE_RETURN_IF_ERROR(fresh->start(deadline));
  FileTable* made = nullptr;
  return of_child_.compare_exchange_strong(made, fresh.get()) ? fresh.release() : made;
}

absl::Status FileTable::catch_up_locked() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> bodies, log_->read());
  for (const std::string& body : bodies) {
    proto::FileRecord record;
    if (!record.ParseFromString(body)) {
      return absl::InvalidArgumentError(absl::StrCat(name(), ": malformed record in the file"));
    }
    GRADWIRE_RETURN_IF_ERROR(apply_locked(record.kind(), record.key(), record.value()));
  }
  return absl::OkStatus();
}

absl::Status FileTable::apply_locked(int kind, absl::string_view key, absl::string_view value) {
  StoreTable::Wakeups none;  // Waits are implemented by polling, so the table has no waiters.
  switch (kind) {
    case proto::FileRecord::SET:
      // The changes cannot fail: the table has no size limit of its own, and the writer has checked the rest.
      table_->set(key, value, none).IgnoreError();
      break;
    case proto::FileRecord::MULTI_SET:
      if (set_all(*table_, value)) break;
      return absl::InvalidArgumentError(absl::StrCat(name(), ": malformed multi_set in the file"));
    case proto::FileRecord::DELETE:
      table_->erase(key);
      break;
    case proto::FileRecord::APPEND:
      table_->append(key, value, none).IgnoreError();
      break;
    case proto::FileRecord::PUSH:
      table_->push(key, value, none).IgnoreError();
      break;
    case proto::FileRecord::POP:
      table_->pop(key);
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
  return absl::OkStatus();
}

// First the file, then the table: if the file cannot be written, the change has not happened.
absl::Status FileTable::append_locked(int kind, absl::string_view key, absl::string_view value) {
  proto::FileRecord record;
  record.set_kind(static_cast<proto::FileRecord::Kind>(kind));
  record.set_key(std::string(key));
  record.set_value(std::string(value));
  GRADWIRE_RETURN_IF_ERROR(log_->append(record.SerializeAsString()));
  return apply_locked(kind, key, value);
}

// Read, decide and write under one exclusive lock: this makes the operation atomic among processes.
absl::Status FileTable::update(absl::Time deadline, Change change) {
  if (!mark_.here()) {
    GRADWIRE_ASSIGN_OR_RETURN(FileTable* const own, table_of_child(deadline));
    return own->update(deadline, change);
  }
  MutexLock lock(mutex_);
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock_, deadline));
  absl::Status status = catch_up_locked();
  if (status.ok()) {
    status = change(*table_,
                    [&](int kind, absl::string_view key, absl::string_view value)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return append_locked(kind, key, value); });
  }
  log_->unlock();
  // Threads of this process that wait need not wait for their next poll.
  changed_.notify_all();
  return status;
}

absl::Status FileTable::read_changes_locked(absl::Time deadline) {
  // Waiting processes read at the same time, so they share the lock.
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/false, clock_, deadline));
  absl::Status status = catch_up_locked();
  const bool torn = status.ok() && log_->has_torn_tail();
  log_->unlock();
  if (!torn) return status;
  // Cut off the torn tail. Otherwise every poll of every process would find a change and read the file again,
  // until some process writes.
  // The lock was released in between, so read again: another process may have cut off the tail or written
  // behind it.
  GRADWIRE_RETURN_IF_ERROR(log_->lock(/*exclusive=*/true, clock_, deadline));
  status = catch_up_locked();
  if (status.ok()) status = log_->cut_off_tail();
  log_->unlock();
  return status;
}

absl::StatusOr<bool> FileTable::poll(absl::Time deadline, absl::FunctionRef<bool(const StoreTable&)> found) {
  if (!mark_.here()) {
    GRADWIRE_ASSIGN_OR_RETURN(FileTable* const own, table_of_child(deadline));
    return own->poll(deadline, found);
  }
  absl::Duration pause = kMinPollInterval;
  MutexLock lock(mutex_);
  while (true) {
    // Without a lock: it compares the size of the file with what was read.
    if (log_->has_changes()) {
      GRADWIRE_RETURN_IF_ERROR(read_changes_locked(deadline));
      pause = kMinPollInterval;
    }
    if (found(*table_)) return true;
    const absl::Time now = clock_.now();
    if (now >= deadline) return false;
    clock_.wait_until(mutex_, changed_, std::min(deadline, now + pause));
    pause = std::min(pause * 2, kMaxPollInterval);
  }
}

}  // namespace gradwire::store
