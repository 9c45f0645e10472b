#include "gradwire/rpc/membership/shutdown_wait.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rpc {
namespace {

std::string describe(const ShutdownWait::Unfinished& unfinished) {
  using Kind = ShutdownWait::Unfinished::Kind;
  switch (unfinished.kind) {
    case Kind::kServed:
      return absl::StrCat("\"", unfinished.what, "\", called by worker \"", unfinished.worker, "\"");
    case Kind::kCalled:
      return absl::StrCat("the answer of worker \"", unfinished.worker, "\" to \"", unfinished.what, "\"");
    case Kind::kStreamServed:
      return absl::StrCat("the stream of \"", unfinished.what, "\", which worker \"", unfinished.worker,
                          "\" reads");
    case Kind::kStreamRead:
      return absl::StrCat("items of the stream of \"", unfinished.what, "\" on worker \"", unfinished.worker,
                          "\"");
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
  // A reader of a stream has several calls under way, and many callers may wait for one slow function.
  struct Item {
    std::string text;
    absl::Time since;
    int times = 1;
  };
  std::vector<Item> items;
  HashMap<std::string, std::size_t> places;
  for (const Unfinished& each : unfinished) {
    std::string text = describe(each);
    const auto [place, is_new] = places.try_emplace(text, items.size());
    if (is_new) {
      items.push_back({std::move(text), each.since});
    } else {
      ++items[place->second].times;
    }
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kMaxItems); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", items[i].text, " (", seconds(clock_.now() - items[i].since));
    if (items[i].times > 1) absl::StrAppend(&text, ", ", items[i].times, " times");
    absl::StrAppend(&text, ")");
  }
  if (items.size() > kMaxItems) absl::StrAppend(&text, "; and ", items.size() - kMaxItems, " more");
  return text;
}

std::string ShutdownWait::report(std::vector<Unfinished> unfinished) const {
  return absl::StrCat("graceful shutdown of worker \"", worker_,
                      "\" waits for: ", list(std::move(unfinished)));
}

}  // namespace gradwire::rpc
