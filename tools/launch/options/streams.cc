#include "gradwire/tools/launch/options/streams.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::tools {
namespace {

absl::StatusOr<Streams> parse_streams(absl::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", digit, "\" is not one of 0 (nothing), 1 (stdout), 2 (stderr), 3 (both)"));
  }
  const int bits = digit[0] - '0';
  return Streams{.out = (bits & 1) != 0, .err = (bits & 2) != 0};
}

StreamRoute route(bool redirect, bool tee, bool shown) {
  return {.console = shown && (tee || !redirect), .file = tee || redirect};
}

}  // namespace

absl::StatusOr<StreamSpec> StreamSpec::parse(absl::string_view text) {
  StreamSpec spec;
  if (!absl::StrContains(text, ':')) {
    absl::StatusOr<Streams> all = parse_streams(text);
    if (!all.ok()) return all.status();
    spec.all_ = *all;
    return spec;
  }
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    int rank = 0;
    if (pair.size() != 2 || !absl::SimpleAtoi(pair[0], &rank) || rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is not LOCAL_RANK:STREAMS as in 0:1,1:3"));
    }
    absl::StatusOr<Streams> streams = parse_streams(pair[1]);
    if (!streams.ok()) return streams.status();
    if (!spec.by_rank_.emplace(rank, *streams).second) {
      return absl::InvalidArgumentError(absl::StrCat("local rank ", rank, " is named twice"));
    }
  }
  return spec;
}

Streams StreamSpec::of(int local_rank) const {
  if (by_rank_.empty()) return all_;
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? Streams{} : found->second;
}

StreamRoute StreamRoutes::out_of(int local_rank) const {
  return route(redirects.of(local_rank).out, tee.of(local_rank).out, !shown || shown->count(local_rank) > 0);
}

StreamRoute StreamRoutes::err_of(int local_rank) const {
  return route(redirects.of(local_rank).err, tee.of(local_rank).err, !shown || shown->count(local_rank) > 0);
}

bool StreamRoutes::any_file(int workers) const {
  for (int rank = 0; rank < workers; ++rank) {
    if (out_of(rank).file || err_of(rank).file) return true;
  }
  return false;
}

}  // namespace gradwire::tools
