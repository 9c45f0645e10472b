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

// A store in a file that the processes share: one host, or several over a file system with locks. Needs no
// server and no port. Every operation holds a lock of fcntl; a wait looks again every 1 to 20 ms. A process
// that dies, at any moment, leaves a store that the others go on using. A host that dies may not: nothing is
// synced to the disk. One file holds at most 4 GiB, all changes counted.
//
// `world_size` says what becomes of the file:
//   none  It stays, and what it holds is found by whoever opens it next.
//   N > 0 The last of N processes to close it removes it. If nobody has it open and a job of N has been
//   through, or
//         somebody died in it, its contents are leftovers and the next to open it begins afresh.
//   0     Any number of processes: whoever finds nobody else there begins afresh, the last to go removes it.
//
// Thread-safe; several in one process on one path are as several processes. A forked child may go on using
// it.
class FileStore : public Store {
 public:
  // Throws Error: NotFound if the directory does not exist; InvalidArgument if the path is no regular file,
  // belongs to something else or is damaged; PermissionDenied; DeadlineExceeded if a process sits on the
  // lock.
  explicit FileStore(const std::string& path, std::optional<int> world_size = std::nullopt,
                     absl::Duration timeout = kDefaultTimeout);
  ~FileStore() override;

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<FileStore>> open(const std::string& path,
                                                         std::optional<int> world_size,
                                                         absl::Duration timeout = kDefaultTimeout);

  // The file, as it was given.
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
  // Brings the table up to date; with the data lock of the file held.
  absl::Status catch_up_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As catch_up_locked, and takes the data lock for it.
  absl::Status read_news_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status append_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void apply_locked(int kind, absl::string_view key, absl::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks until `found` says so (which then has what it wants) or the deadline; true if it did.
  absl::StatusOr<bool> poll(absl::Time deadline, absl::FunctionRef<bool()> found);

  const std::string path_;
  const std::optional<int> world_size_;

  Mutex mutex_;
  CondVar changed_;  // By this object; other processes' changes are polled for.
  std::unique_ptr<FileLog> log_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StoreTable> table_ ABSL_GUARDED_BY(mutex_);
  pid_t process_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether the log has this object's JOIN and not yet its LEAVE.
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t leaves_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::store
