#include "collectives/rank_claim.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "collectives/agreement.h"
#include "collectives/process_identity.h"
#include "store/prefix_store.h"

namespace gradwire::collectives {
namespace {

// For what another has written just after its join was counted, and for what is written when a join has failed.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr std::size_t kMostName = 64;

std::string joined_key(int rank) { return absl::StrCat("joined/", rank); }
std::string claim_key(int rank, int64_t number) { return absl::StrCat("claim/", rank, "/", number); }
std::string world_key(int64_t number) { return absl::StrCat("world/", number); }

std::string own_host_name() {
  std::array<char, kMostName + 1> name = {};
  if (::gethostname(name.data(), kMostName) != 0) return "an unknown host";
  return name.data();
}

struct Claimant {
  ProcessIdentity process;
  std::string host;

  std::string name() const { return absl::StrCat("process ", process.id, " on ", host); }
  std::string text() const { return absl::StrCat(encode(process), "\n", host); }
};

// None for a claim that was given back, or that is malformed.
std::optional<Claimant> read_claim(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 1));
  std::optional<ProcessIdentity> process = decode_process(parts.first);
  if (!process.has_value()) return std::nullopt;
  std::string host = parts.second.substr(0, kMostName);
  // It goes into messages.
  std::replace_if(
      host.begin(), host.end(), [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); },
      '?');
  return Claimant{*std::move(process), std::move(host)};
}

}  // namespace

// Numbered steps: 1. count the join; 2. say who has come; 3. look who came before, and whether he waits.
absl::StatusOr<RankClaim> RankClaim::take(std::shared_ptr<store::Store> book, int rank,
                                          absl::string_view round) {
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t number, book->try_add(joined_key(rank), 1));
  RankClaim claim;
  claim.book_ = book;
  claim.world_ = std::make_shared<store::PrefixStore>(world_key(number), book);
  claim.key_ = claim_key(rank, number);
  claim.rank_ = rank;
  const Claimant self{this_process(), own_host_name()};
  GRADWIRE_RETURN_IF_ERROR(book->try_set(claim.key_, self.text()));
  if (number <= 1) return claim;

  const std::string before = claim_key(rank, number - 1);
  const absl::StatusOr<std::string> text = book->try_get(before, kPatience);
  if (!text.ok())
    return absl::IsDeadlineExceeded(text.status()) ? absl::StatusOr<RankClaim>(claim) : text.status();
  const std::optional<Claimant> other = read_claim(*text);
  if (!other.has_value() || has_ended(other->process)) return claim;
  store::PrefixStore others_world(world_key(number - 1), book);
  const absl::Status twice = absl::AlreadyExistsError(
      absl::StrCat("two processes came as rank ", rank, ": ", other->name(), ", and ", self.name()));
  GRADWIRE_ASSIGN_OR_RETURN(const bool waited, refuse_round(others_world, round, twice, kPatience));
  if (waited) {
    // As if this process had not come: the others may try again, and must agree on the number of their world.
    (void)book->try_add(joined_key(rank), -1, kPatience);
    return claim.release(twice);
  }
  if (other->text() != self.text()) claim.other_ = other->name();
  return claim;
}

absl::Status RankClaim::release(const absl::Status& reason) const {
  (void)book_->try_set(key_, "", kPatience);
  if (other_.empty() || !absl::IsDeadlineExceeded(reason)) return reason;
  return absl::DeadlineExceededError(absl::StrCat(reason.message(), "; ", other_, " came as rank ", rank_,
                                                  " before, to a world of its own"));
}

}  // namespace gradwire::collectives
