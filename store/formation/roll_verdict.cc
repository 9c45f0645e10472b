#include "gradwire/store/formation/roll_verdict.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {
namespace {

constexpr char kComplete[] = "complete";
constexpr char kRefused[] = "refused";
constexpr std::size_t kMostText = 4096;

}  // namespace

std::string RollVerdict::text() const {
  if (complete()) return kComplete;
  return absl::StrCat(kRefused, " ", ranks, " ", time, " ", static_cast<int>(refusal.code()), " ",
                      refusal.message())
      .substr(0, kMostText);
}

std::optional<RollVerdict> RollVerdict::read(const std::string& text) {
  if (text == kComplete) return RollVerdict();
  if (text.size() > kMostText) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  RollVerdict verdict;
  int code = 0;
  if (words.size() != 5 || words[0] != kRefused || !absl::SimpleAtoi(words[1], &verdict.ranks) ||
      verdict.ranks < 0 || verdict.ranks > static_cast<int>(kMaxKeysPerWait) ||
      !absl::SimpleAtoi(words[2], &verdict.time) || !absl::SimpleAtoi(words[3], &code) || code < 1 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return std::nullopt;
  }
  verdict.refusal = absl::Status(static_cast<absl::StatusCode>(code), words[4]);
  return verdict;
}

}  // namespace gradwire::store
