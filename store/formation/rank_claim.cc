#include "gradwire/store/formation/rank_claim.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/random_id.h"

namespace gradwire::store {
namespace {

constexpr std::size_t kMaxClaimBytes = 1024;
constexpr std::size_t kMaxHostBytes = 64;

}  // namespace

RankClaim RankClaim::make(int world_size) {
  return {.world_size = world_size,
          .process = this_process(),
          .host = host_name().substr(0, kMaxHostBytes),
          .attempt = random_id()};
}

std::optional<RankClaim> RankClaim::read(const std::string& text) {
  if (text.size() > kMaxClaimBytes) return std::nullopt;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  RankClaim claim;
  if (lines.size() != 4 || !absl::SimpleAtoi(lines[0], &claim.world_size) ||
      !absl::SimpleAtoi(lines[1], &claim.attempt)) {
    return std::nullopt;
  }
  std::optional<ProcessIdentity> process = decode_process(lines[2]);
  if (!process.has_value()) return std::nullopt;
  claim.process = *std::move(process);
  claim.host = lines[3].substr(0, kMaxHostBytes);
  // The name goes into error messages: replace unprintable characters.
  std::replace_if(
      claim.host.begin(), claim.host.end(),
      [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); }, '?');
  return claim;
}

std::string RankClaim::text() const {
  return absl::StrCat(world_size, "\n", attempt, "\n", encode(process), "\n", host);
}

std::string RankClaim::name() const { return absl::StrCat("process ", process.id, " on ", host); }

bool RankClaim::is_of_this_process() const {
  return !process.space.empty() && encode(process) == encode(this_process());
}

bool RankClaim::has_ended() const { return !is_of_this_process() && gradwire::has_ended(process); }

}  // namespace gradwire::store
