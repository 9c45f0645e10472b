#include "gradwire/security/policy/policy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log.h"

namespace gradwire::security {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::min();
// The coarsest grain of the times of files (FAT has 2 s).
constexpr absl::Duration kGrain = absl::Seconds(2);

absl::Status cannot(const std::string& path, absl::string_view what, int error) {
  const std::string text =
      absl::StrCat("cannot ", what, " the policy file ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR)
    return absl::NotFoundError(absl::StrCat(text, "; create it, or correct SecurityOptions::policy_file"));
  if (error == EACCES || error == EPERM)
    return absl::PermissionDeniedError(absl::StrCat(text, "; let this process's user read it"));
  return absl::UnavailableError(text);
}

// A user who can write the file decides who may call this worker.
absl::Status check_protection(const std::string& path, const struct stat& file) {
  if (!S_ISREG(file.st_mode))
    return absl::InvalidArgumentError(absl::StrCat("the policy file ", path, " is not a regular file"));
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the policy file ", path, " may be written by ",
                     (file.st_mode & S_IWOTH) != 0 ? "all users" : "its group",
                     ", who could give themselves every permission; run: chmod go-w ", path));
  }
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the policy file ", path, " belongs to user ", file.st_uid, ", expected user ",
                     geteuid(), " (of this process) or root; run: chown ", geteuid(), " ", path));
  }
  return absl::OkStatus();
}

}  // namespace

PolicyFile::Found PolicyFile::read(const std::string& path) {
  Found found{.text = absl::UnknownError("")};
  // O_NONBLOCK: a FIFO must not block the open.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat state = {};
  if (!file.valid() || fstat(file.get(), &state) != 0) {
    found.text = cannot(path, "open", errno);
    return found;
  }
  found.stamp = {state.st_dev, state.st_ino, state.st_size, absl::TimeFromTimespec(state.st_mtim),
                 absl::TimeFromTimespec(state.st_ctim)};
  found.recent = absl::Now() - found.stamp.changed < kGrain;
  if (absl::Status safe = check_protection(path, state); !safe.ok()) {
    found.text = safe;
    return found;
  }
  // One byte more than allowed, so that the parser refuses a file that is too large.
  std::string text(kMaxPolicyBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      found.text = cannot(path, "read", errno);
      return found;
    }
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  found.text = std::move(text);
  return found;
}

PolicyFile::PolicyFile(const std::string& path, Found found, PolicyPtr policy)
    : path_(path),
      cache_(std::move(policy)),
      examined_at_(kNever),
      stamp_(found.stamp),
      recent_(found.recent),
      text_(*std::move(found.text)) {}

absl::StatusOr<std::unique_ptr<PolicyFile>> PolicyFile::open(const std::string& path) {
  Found found = read(path);
  if (!found.text.ok()) return found.text.status();
  absl::StatusOr<PolicyPtr> policy = Policy::parse(*found.text, path);
  if (!policy.ok()) return policy.status();
  return std::unique_ptr<PolicyFile>(new PolicyFile(path, std::move(found), *std::move(policy)));
}

Decision PolicyFile::check(absl::string_view caller, const Subject& subject, absl::Time now) {
  const int64_t at = absl::ToUnixNanos(now);
  const auto due = [&] {
    const int64_t last = examined_at_.load(std::memory_order_acquire);
    return last == kNever || at - last >= absl::ToInt64Nanoseconds(kExamineEvery);
  };
  if (due()) {
    MutexLock lock(examining_);
    // Another thread may have done it meanwhile.
    if (due()) {
      examine_locked();
      examined_at_.store(at, std::memory_order_release);
    }
  }
  return cache_.check(caller, subject);
}

// The steps:
//   1. If the stamp is that of the last check, and old enough to be trusted, nothing has changed.
//   2. Read the file. It may have changed again since step 1, so the stamp that counts is that of the
//      descriptor.
//   3. Use the new rules, or warn.
void PolicyFile::examine_locked() {
  struct stat state = {};
  if (!recent_ && ::stat(path_.c_str(), &state) == 0 &&
      stamp_ == Stamp{state.st_dev, state.st_ino, state.st_size, absl::TimeFromTimespec(state.st_mtim),
                      absl::TimeFromTimespec(state.st_ctim)})
    return;
  Found found = read(path_);
  stamp_ = found.stamp;
  recent_ = found.recent;
  absl::Status problem = found.text.status();
  if (problem.ok()) {
    // The same content, for example after `touch`, or in a file that is now protected again.
    if (*found.text == text_ && problem_.ok()) return;
    absl::StatusOr<PolicyPtr> policy = Policy::parse(*found.text, path_);
    text_ = *std::move(found.text);
    if (policy.ok()) {
      cache_.replace(*policy);
      generation_.fetch_add(1, std::memory_order_acq_rel);
      log(LogLevel::kInfo, "read the changed policy file ", path_);
    }
    problem = policy.status();
  }
  // Once for each problem: a file that stays as it is says nothing new.
  if (!problem.ok() && problem != problem_)
    log(LogLevel::kWarning,
        "the old policy stays in force, because the changed file cannot be used: ", problem.message());
  problem_ = std::move(problem);
}

}  // namespace gradwire::security
