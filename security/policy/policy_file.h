#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/policy/decision_cache.h"
#include "gradwire/security/policy/policy.h"

namespace gradwire::security {

// A policy in a file, which is read again when it changes. A thread of its own examines the file once a
// second, because a file system may take long to answer, and check() is called by threads that must not wait.
// Until the file has been read, check() answers by the rules before. A new file with a mistake, or one that
// others could write, is not used: the rules before it stay, and a warning names the reason, once for each
// state of the file. Thread-safe.
class PolicyFile {
 public:
  // Runs a task once a second on a thread of its own.
  static Repeat once_a_second();
  // `path` must be a file that no other user may write. `examine` runs the examination of the file again and
  // again; tests run it themselves. Errors: those of read_checked_file(); InvalidArgument for a mistake in
  // the file, with line and column; Unavailable if the system has no threads left.
  static absl::StatusOr<std::shared_ptr<PolicyFile>> open(const std::string& path,
                                                          const Repeat& examine = once_a_second());

  // Never blocks.
  Decision check(absl::string_view caller, const Subject& subject) { return cache_.check(caller, subject); }

  const std::string& path() const { return path_; }
  // Changes when the rules have changed: line numbers of another generation mean nothing.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  // The file as it was found.
  struct Found {
    std::string text;
    FileStamp stamp;
    // Whether a later change may leave the stamp as it is, because times of files have a coarse grain.
    bool recent = false;
  };

  PolicyFile(const std::string& path, Found found, PolicyPtr policy);
  static absl::StatusOr<Found> read(const std::string& path);
  void examine();

  const std::string path_;
  DecisionCache cache_;
  std::atomic<uint64_t> generation_{1};

  // The members below are used only by examine(), which one thread runs, except the last one.

  // The state of the file that was read last. Nothing equals it if that is not certain: then the file is read
  // again.
  std::optional<FileStamp> stamp_;
  // The content of the file that was read last, also if it is not in use, and the error that was logged for
  // it.
  std::string text_;
  absl::Status problem_;
  // The examinations. Set by open().
  std::shared_ptr<void> examinations_;
};

}  // namespace gradwire::security
