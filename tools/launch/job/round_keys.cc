#include "gradwire/tools/launch/job/round_keys.h"

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

// PyTorch's process groups and its RPC keep the addresses of their members below these prefixes, which are
// the same in each round. Programs of Gradwire use the number of the round in theirs.
constexpr std::array<absl::string_view, 2> kPrefixesOfARound = {"default_pg/", "rpc_prefix_"};

}  // namespace

// All calls share the deadline: a store that answers each call late must not hold up the launcher for the
// number of its keys.
absl::Status remove_round_keys(store::Store& store, Clock& clock, absl::Time deadline) {
  for (const absl::string_view prefix : kPrefixesOfARound) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                              store.try_list_keys_under(prefix, deadline - clock.now()));
    for (const std::string& key : keys) {
      const absl::Duration left = deadline - clock.now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("the ", store.description(), " took too long to remove the keys of the last round"));
      }
      GRADWIRE_RETURN_IF_ERROR(store.try_delete_key(key, left).status());
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::tools
