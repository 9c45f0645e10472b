#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/policy/decision_cache.h"
#include "gradwire/security/policy/policy.h"

namespace gradwire::security {

// A policy in a file, which is read again when it changes. No thread watches it: check() examines the file
// if that was last done a second ago. Then the first question after a change is answered by the new rules. A
// new file with a mistake, or one that others could write, is not used: the rules before it stay, and a
// warning names the reason, once for each state of the file. Thread-safe.
class PolicyFile {
 public:
  // `path` must be a file that no other user may write. Errors: those of read_checked_file(); InvalidArgument
  // for a mistake in the file, with line and column.
  static absl::StatusOr<std::unique_ptr<PolicyFile>> open(const std::string& path);

  // `now`: on a monotonic clock.
  Decision check(absl::string_view caller, const Subject& subject, absl::Time now);

  const std::string& path() const { return path_; }
  // Changes when the rules have changed: line numbers of another generation mean nothing.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // Time between two examinations of the file.
  static constexpr absl::Duration kExamineEvery = absl::Seconds(1);

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
  void examine_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(examining_);

  const std::string path_;
  DecisionCache cache_;
  // When the file was examined last, in nanoseconds of the caller's clock; kNever before the first question.
  std::atomic<int64_t> examined_at_;
  std::atomic<uint64_t> generation_{1};

  // Locked while a thread examines the file. Others that find it due wait for the result.
  Mutex examining_;
  // The state of the file that was read last. Nothing equals it if that is not certain: then the file is read
  // again.
  std::optional<FileStamp> stamp_ ABSL_GUARDED_BY(examining_);
  // The content of the file that was read last, also if it is not in use, and the error that was logged for
  // it.
  std::string text_ ABSL_GUARDED_BY(examining_);
  absl::Status problem_ ABSL_GUARDED_BY(examining_);
};

}  // namespace gradwire::security
