#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gradwire/store/interface/store.h"

namespace gradwire::store {

class FileTable;

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
// A clone shares the membership of its original, which ends with the last of them. An item that queue_pop
// returns is lost if the process dies before it has used it.
//
// Thread-safe. Several FileStores on one path in one process act like several processes. A forked child may
// go on using the store.
class FileStore : public Store {
 public:
  // Throws Error: NotFound if the directory does not exist; InvalidArgument if the path is not a regular
  // file, or the file was not written by a FileStore or is damaged; PermissionDenied, also if another user
  // has made the file in a folder like /tmp, to which every user can write; DeadlineExceeded if another
  // process does not release the lock. A new file has mode 0600: only processes of this user can open it.
  explicit FileStore(const std::string& path, std::optional<int> world_size = std::nullopt,
                     absl::Duration timeout = kDefaultTimeout);

  // The same without exceptions.
  static absl::StatusOr<std::shared_ptr<FileStore>> open(const std::string& path,
                                                         std::optional<int> world_size,
                                                         absl::Duration timeout = kDefaultTimeout);

  // The path as given to the constructor.
  const std::string& path() const;
  std::string description() const override;

 private:
  explicit FileStore(std::shared_ptr<FileTable> table, absl::Duration timeout = kDefaultTimeout);

  bool works_in_children() const override { return true; }
  GRADWIRE_STORE_OPERATIONS_;

  const std::shared_ptr<FileTable> table_;
};

}  // namespace gradwire::store
