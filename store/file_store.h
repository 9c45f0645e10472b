#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/file/file_log.h"
#include "gradwire/store/memory/store_table.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// A store in a file that the processes share. They run on one host, or on several hosts with a shared file
// system that supports locks. The store needs no server and no port. Every operation holds an fcntl lock; a
// wait polls the file every 1 to 20 ms. If a process dies, at any moment, the others can go on using the
// store. If a host dies, the file may be damaged, because nothing is synced to the disk. One file holds at
// most 4 GiB; every change counts, not only the current values.
//
// `world_size` decides the lifetime of the file:
//   none  The file stays. The next process that opens it finds its contents.
//   N > 0 The last of N processes that closes the file removes it. If no process has it open, and either
//         all N have closed it or one of them died, its contents are leftovers: the next process that opens
//         the file empties it.
//   0     Any number of processes. A process that opens the file while no other has it open empties it; the
//         last that closes it removes it.
//
// Thread-safe. Several FileStores on one path in one process act like several processes. A forked child may
// go on using the store.
class FileStore : public Store {
 public:
  // Throws Error: NotFound if the directory does not exist; InvalidArgument if the path is not a regular
  // file, or the file was not written by a FileStore or is damaged; PermissionDenied; DeadlineExceeded if
  // another process does not release the lock.
  explicit FileStore(const std::string& path, std::optional<int> world_size = std::nullopt,
                     absl::Duration timeout = kDefaultTimeout);
  ~FileStore() override;

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<FileStore>> open(const std::string& path,
                                                         std::optional<int> world_size,
                                                         absl::Duration timeout = kDefaultTimeout);

  // The path as given to the constructor.
  const std::string& path() const { return path_; }
  std::string description() const override;

 private:
  struct Unopened {};
  FileStore(Unopened, const std::string& path, std::optional<int> world_size, absl::Duration timeout);

  GRADWIRE_STORE_OPERATIONS_;

  absl::Status start(absl::Time deadline);
  absl::Status begin_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void finish();
  // Runs `change` with the file locked and the table up to date.
  absl::Status update(absl::Time deadline, absl::FunctionRef<absl::Status()> change);
  absl::Status reopen_after_fork_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the changes of other processes to the table. The caller holds the file's data lock.
  absl::Status catch_up_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As catch_up_locked(), but takes the data lock itself.
  absl::Status read_changes_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status append_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void apply_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reset_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Polls until `found` returns true or the deadline passes; `found` then has the result. Returns the last
  // result of `found`.
  absl::StatusOr<bool> poll(absl::Time deadline, absl::FunctionRef<bool()> found);

  const std::string path_;
  const std::optional<int> world_size_;

  Mutex mutex_;
  CondVar changed_;  // Notified of changes by this object. Changes by other processes are found by polling.
  std::unique_ptr<FileLog> log_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StoreTable> table_ ABSL_GUARDED_BY(mutex_);
  pid_t process_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether the log has this object's JOIN but not yet its LEAVE.
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t leaves_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::store
