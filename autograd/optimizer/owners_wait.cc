#include "gradwire/autograd/optimizer/owners_wait.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace gradwire::autograd {
namespace {

// Number of owners that are named.
constexpr std::size_t kNamed = 8;

}  // namespace

std::optional<ProgressState> owners_state(absl::string_view what, const std::vector<std::string>& names,
                                          absl::FunctionRef<bool(std::size_t)> done) {
  std::size_t missing = 0;
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (done(i)) continue;
    if (++missing <= kNamed) absl::StrAppend(&list, missing == 1 ? "" : ", ", "\"", names[i], "\"");
  }
  if (missing == 0) return std::nullopt;
  if (missing > kNamed) absl::StrAppend(&list, " and ", missing - kNamed, " more");
  const std::size_t answered = names.size() - missing;
  return ProgressState{.text = absl::StrCat(what, ": ", answered, " of ", names.size(),
                                            " owners have answered; waiting for ", list),
                       .done = static_cast<int64_t>(answered),
                       .total = static_cast<int64_t>(names.size())};
}

}  // namespace gradwire::autograd
