#include "tools/launch_info.h"

#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"

namespace gradwire {
namespace {

// Reads variables one after the other and remembers what was wrong, so that one message can name all that is
// missing.
class Reader {
 public:
  std::string text(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') {
      missing_.push_back(name);
      return "";
    }
    return value;
  }

  int number(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    const std::string value = text(name);
    int result = low;
    if (value.empty() || (absl::SimpleAtoi(value, &result) && result >= low && result <= high)) return result;
    if (wrong_.empty()) {
      wrong_ = absl::StrCat("environment variable ", name, "=\"", value, "\" is not a number in ", low, "..",
                            high);
    }
    return low;
  }

  void require_below(const char* name, int value, const char* bound_name, int bound) {
    if (missing_.empty() && wrong_.empty() && value >= bound) {
      wrong_ =
          absl::StrCat("environment variable ", name, "=", value, " is not below ", bound_name, "=", bound);
    }
  }

  void throw_if_wrong() const {
    if (!missing_.empty()) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "missing environment variable", missing_.size() > 1 ? "s " : " ", absl::StrJoin(missing_, ", "),
          ": was this program started by the launcher (bazel run //tools:launch -- program)?")));
    }
    if (!wrong_.empty()) throw Error(absl::InvalidArgumentError(wrong_));
  }

 private:
  std::vector<std::string> missing_;
  std::string wrong_;
};

}  // namespace

LaunchInfo LaunchInfo::from_env() {
  Reader reader;
  LaunchInfo info;
  info.rank = reader.number("RANK", 0);
  info.world_size = reader.number("WORLD_SIZE", 1);
  info.local_rank = reader.number("LOCAL_RANK", 0);
  info.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1);
  info.group_rank = reader.number("GROUP_RANK", 0);
  info.role = reader.text("ROLE_NAME");
  info.role_rank = reader.number("ROLE_RANK", 0);
  info.master_addr = reader.text("MASTER_ADDR");
  info.master_port = reader.number("MASTER_PORT", 1, 65535);
  reader.require_below("RANK", info.rank, "WORLD_SIZE", info.world_size);
  reader.require_below("LOCAL_RANK", info.local_rank, "LOCAL_WORLD_SIZE", info.local_world_size);
  reader.throw_if_wrong();
  return info;
}

}  // namespace gradwire
