#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/file/file_log.h"
#include "gradwire/store/memory/store_table.h"

namespace gradwire::store {

// The table of a FileStore, which its clones share: a StoreTable that follows the log in the file, and the
// membership of this object in the file's world (JOIN, LEAVE).
//
// Thread-safe. A forked child may go on using it: there it is the way to a table of the child, which is not a
// member of the world.
class FileTable {
 public:
  // `clock` must outlive the table.
  FileTable(std::string path, std::optional<int> world_size, Clock& clock);
  // Leaves the world. The last member removes the file.
  ~FileTable();
  FileTable(const FileTable&) = delete;
  FileTable& operator=(const FileTable&) = delete;

  // Must be called once, before the other methods. Errors as those of FileStore's constructor.
  absl::Status start(absl::Time deadline);

  // Appends one record to the log and applies it to the table. `kind` is a proto::FileRecord::Kind.
  using Append = absl::FunctionRef<absl::Status(int kind, absl::string_view key, absl::string_view value)>;
  using Change = absl::FunctionRef<absl::Status(const StoreTable& table, Append append)>;
  // Runs `change` with the file locked and the table up to date.
  absl::Status update(absl::Time deadline, Change change);
  // Polls until `found` returns true or the deadline passes. Returns the last result of `found`.
  absl::StatusOr<bool> poll(absl::Time deadline, absl::FunctionRef<bool(const StoreTable& table)> found);

  const std::string& path() const { return path_; }

 private:
  absl::Status begin_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void finish();
  // In a forked child: the child's table.
  absl::StatusOr<FileTable*> table_of_child(absl::Time deadline);
  // Applies the changes of other processes to the table. The caller holds the file's data lock.
  absl::Status catch_up_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As catch_up_locked(), but takes the data lock itself.
  absl::Status read_changes_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status append_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // InvalidArgument if the record is malformed; it then changes nothing.
  absl::Status apply_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reset_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The name of the store, for messages.
  std::string name() const;

  const std::string path_;
  const std::optional<int> world_size_;
  Clock& clock_;
  const ProcessMark mark_;
  std::atomic<FileTable*> of_child_{nullptr};

  // In a forked child it may be locked.
  Mutex mutex_;
  CondVar changed_;  // Notified of changes by this object. Changes by other processes are found by polling.
  std::unique_ptr<FileLog> log_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StoreTable> table_ ABSL_GUARDED_BY(mutex_);
  // Whether the log has this object's JOIN but not yet its LEAVE.
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t leaves_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::store
