#include "gradwire/security/policy/policy_file.h"

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"

namespace gradwire::security {
namespace {

// The coarsest grain of the times of files (FAT has 2 s).
constexpr absl::Duration kGrain = absl::Seconds(2);

// A user who can write the file decides who may call this worker.
constexpr FileKind kPolicyFile = {.what = "policy file",
                                  .option = "SecurityOptions::policy_file (GRADWIRE_POLICY_FILE)",
                                  .rule = FileKind::Rule::kTrusted,
                                  .most = kMaxPolicyBytes};

}  // namespace

absl::StatusOr<PolicyFile::Found> PolicyFile::read(const std::string& path) {
  GRADWIRE_ASSIGN_OR_RETURN(const CheckedFile file, read_checked_file(kPolicyFile, path));
  return Found{.text = std::string(file.content.reveal()),
               .stamp = file.stamp,
               .recent = absl::Now() - file.stamp.changed < kGrain};
}

PolicyFile::PolicyFile(const std::string& path, Found found, PolicyPtr policy)
    : path_(path),
      cache_(std::move(policy)),
      stamp_(found.recent ? std::nullopt : std::optional(found.stamp)),
      text_(std::move(found.text)) {}

Repeat PolicyFile::once_a_second() { return repeat({.name = "policy-file", .period = absl::Seconds(1)}); }

absl::StatusOr<std::shared_ptr<PolicyFile>> PolicyFile::open(const std::string& path, const Repeat& examine) {
  GRADWIRE_ASSIGN_OR_RETURN(Found found, read(path));
  GRADWIRE_ASSIGN_OR_RETURN(PolicyPtr policy, Policy::parse(found.text, path));
  std::shared_ptr<PolicyFile> file(new PolicyFile(path, std::move(found), std::move(policy)));
  GRADWIRE_ASSIGN_OR_RETURN(file->examinations_, examine([weak = std::weak_ptr<PolicyFile>(file)] {
                              if (const std::shared_ptr<PolicyFile> self = weak.lock()) self->examine();
                            }));
  return file;
}

// The steps:
//   1. If the stamp is that of the last check, and old enough to be trusted, nothing has changed.
//   2. Read the file. It may have changed again since step 1, so the stamp that counts is that of the
//      descriptor.
//   3. Use the new rules, or warn. A file that cannot be read is read again at the next check.
void PolicyFile::examine() {
  if (stamp_ == stamp_of(path_)) return;
  absl::StatusOr<Found> found = read(path_);
  absl::Status problem = found.status();
  stamp_.reset();
  if (found.ok()) {
    if (!found->recent) stamp_ = found->stamp;
    // The same content, for example after `touch`, or in a file that is now protected again.
    if (found->text == text_ && problem_.ok()) return;
    absl::StatusOr<PolicyPtr> policy = Policy::parse(found->text, path_);
    text_ = std::move(found->text);
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
