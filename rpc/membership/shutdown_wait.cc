#include "gradwire/rpc/membership/shutdown_wait.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {
namespace {

std::string describe(const ShutdownWait::Unfinished& unfinished) {
  using Kind = ShutdownWait::Unfinished::Kind;
  switch (unfinished.kind) {
    case Kind::kServed:
      return absl::StrCat("\"", unfinished.what, "\", called by worker \"", unfinished.worker, "\"");
    case Kind::kCalled:
      return absl::StrCat("the answer of worker \"", unfinished.worker, "\" to \"", unfinished.what, "\"");
    case Kind::kMember:
      return absl::StrCat("worker \"", unfinished.worker,
                          "\", which has not called shutdown or still has calls under way");
    case Kind::kSilent:
      return absl::StrCat("worker \"", unfinished.worker, "\", which does not answer");
    case Kind::kOther:
      break;
  }
  return unfinished.what;
}

std::string seconds(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
}

}  // namespace

ShutdownWait::ShutdownWait(std::string worker, Clock& clock) : worker_(std::move(worker)), clock_(clock) {}

std::string ShutdownWait::list(std::vector<Unfinished> unfinished) const {
  std::stable_sort(unfinished.begin(), unfinished.end(),
                   [](const Unfinished& a, const Unfinished& b) { return a.since < b.since; });
  std::string text;
  for (std::size_t i = 0; i < std::min(unfinished.size(), kMaxItems); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", describe(unfinished[i]), " (",
                    seconds(clock_.now() - unfinished[i].since), ")");
  }
  if (unfinished.size() > kMaxItems) absl::StrAppend(&text, "; and ", unfinished.size() - kMaxItems, " more");
  return text;
}

std::string ShutdownWait::report(std::vector<Unfinished> unfinished) const {
  return absl::StrCat("graceful shutdown of worker \"", worker_,
                      "\" waits for: ", list(std::move(unfinished)));
}

}  // namespace gradwire::rpc
