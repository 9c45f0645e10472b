#include "gradwire/rpc/mesh/mesh_error.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

// A message must stay readable, also for a mesh of thousands.
constexpr std::size_t kMaxNames = 64;
constexpr std::size_t kMaxErrors = 16;

std::string and_more(std::size_t count, std::size_t shown) {
  return count > shown ? absl::StrCat(" and ", count - shown, " more") : "";
}

}  // namespace

absl::Status failure_of_members(absl::string_view action, std::size_t members, absl::Duration timeout,
                                const std::vector<MemberFailure>& failures) {
  if (failures.empty()) return absl::OkStatus();
  std::vector<std::string> late;
  std::vector<std::string> failed;
  for (const MemberFailure& failure : failures) {
    if (absl::IsDeadlineExceeded(failure.status)) {
      late.push_back(absl::StrCat("\"", failure.name, "\""));
    } else {
      failed.push_back(absl::StrCat("\"", failure.name, "\": ", failure.status.message()));
    }
  }
  std::string text(action);
  std::string separator = " failed: ";
  if (!late.empty()) {
    const std::size_t shown = std::min(late.size(), kMaxNames);
    absl::StrAppend(&text, separator, late.size(), " of ", members, " members did not answer in ",
                    absl::FormatDuration(timeout), ": ",
                    absl::StrJoin(late.begin(), late.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                    and_more(late.size(), shown));
    separator = "; ";
  }
  if (!failed.empty()) {
    const std::size_t shown = std::min(failed.size(), kMaxErrors);
    absl::StrAppend(&text, separator, failed.size(), " of ", members, " members failed: ",
                    absl::StrJoin(failed.begin(), failed.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
                    and_more(failed.size(), shown));
  }
  absl::Status error(failures.front().status.code(), text);
  return failures.size() == 1 ? with_worker(std::move(error), failures.front().name) : error;
}

}  // namespace gradwire::rpc
