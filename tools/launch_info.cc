#include "gradwire/tools/launch_info.h"

#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/store/init/process_place.h"
#include "gradwire/tools/launch/options/gpus.h"
#include "gradwire/tools/launch/process/error_file.h"

namespace gradwire {
namespace {

using store::environment_variable;

// Reads variables one after the other and collects the problems, so that one message names all missing
// variables.
class Reader {
 public:
  std::string text(const char* name) {
    const std::optional<std::string> value = environment_variable(name);
    if (!value) missing_.push_back(name);
    return value.value_or("");
  }

  int number(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    return parse(name, text(name), low, high);
  }

  // Returns `low` if the variable is not set.
  int number_if_set(const char* name, int low, int high = std::numeric_limits<int>::max()) {
    return parse(name, environment_variable(name).value_or(""), low, high);
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
  int parse(const char* name, const std::string& value, int low, int high) {
    int result = low;
    if (value.empty() || (absl::SimpleAtoi(value, &result) && result >= low && result <= high)) return result;
    if (wrong_.empty()) {
      wrong_ = absl::StrCat("environment variable ", name, "=\"", value, "\" is not a number in ", low, "..",
                            high);
    }
    return low;
  }

  std::vector<std::string> missing_;
  std::string wrong_;
};

// The number of tasks that Slurm started on a node. The list "2(x3),1" means two on each of the first three
// nodes, and one on the next. Returns 0 if the list does not contain the node.
int tasks_on_node(const std::string& list, int node) {
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, "(x");
    int tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(pair[0], &tasks) || tasks < 1) return 0;
    if (pair.size() > 1 && !absl::SimpleAtoi(pair[1].substr(0, pair[1].find(')')), &nodes)) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

// Sets the fields that mpirun and srun do not give, or give in variables of their own.
void read_without_launcher(Reader& reader, LaunchInfo& info) {
  info.group_rank = environment_variable("SLURM_STEP_NUM_NODES") ? reader.number("SLURM_NODEID", 0) : -1;
  info.group_world_size = reader.number_if_set("SLURM_STEP_NUM_NODES", 0);
  if (info.local_world_size == 0 && info.group_rank >= 0) {
    info.local_world_size =
        tasks_on_node(environment_variable("SLURM_STEP_TASKS_PER_NODE").value_or(""), info.group_rank);
  }
  info.role = environment_variable("ROLE_NAME").value_or("default");
  info.role_rank = info.rank;
  info.role_world_size = info.world_size;
  info.master_addr = environment_variable("MASTER_ADDR").value_or("");
  info.master_port = reader.number_if_set("MASTER_PORT", 0, 65535);
  info.run_id = environment_variable("SLURM_JOB_ID").value_or("");
}

// torch's env:// needs only RANK, WORLD_SIZE and the address of the store. The launcher and torchrun set
// more.
void read_from_launcher(Reader& reader, LaunchInfo& info) {
  info.group_rank = environment_variable("GROUP_RANK") ? reader.number("GROUP_RANK", 0) : -1;
  info.group_world_size = reader.number_if_set("GROUP_WORLD_SIZE", 0);
  info.role = environment_variable("ROLE_NAME").value_or("default");
  const bool has_role_rank = environment_variable("ROLE_RANK").has_value();
  info.role_rank = has_role_rank ? reader.number("ROLE_RANK", 0) : info.rank;
  info.role_world_size = reader.number_if_set("ROLE_WORLD_SIZE", 0);
  if (!has_role_rank && info.role_world_size == 0) info.role_world_size = info.world_size;
  info.master_addr = reader.text("MASTER_ADDR");
  info.master_port = reader.number("MASTER_PORT", 1, 65535);
  info.run_id = environment_variable("TORCHELASTIC_RUN_ID").value_or("");
  info.restart_count = reader.number_if_set("TORCHELASTIC_RESTART_COUNT", 0);
  info.max_restarts = reader.number_if_set("TORCHELASTIC_MAX_RESTARTS", 0);
  info.round = reader.number_if_set("GRADWIRE_ROUND", 0);
  info.worker_name = environment_variable("GRADWIRE_WORKER_NAME").value_or("");
}

}  // namespace

std::string LaunchInfo::name() const {
  return worker_name.empty() ? absl::StrCat(role, role_rank) : worker_name;
}

std::string LaunchInfo::device() const {
#ifdef GRADWIRE_CUDA
  return value_or_throw(tools::choose_device(tools::count_visible_gpus(), local_rank, local_world_size));
#else
  return "cpu";
#endif
}

LaunchInfo LaunchInfo::from_env() {
  tools::record_uncaught_exceptions();
  install_crash_handler();
  const store::PlaceVariables place = store::place_variables();
  Reader reader;
  LaunchInfo info;
  info.rank = reader.number(place.rank, 0);
  info.world_size = reader.number(place.world_size, 1);
  info.local_rank = reader.number_if_set(place.local_rank, 0);
  const bool has_local_size =
      place.local_world_size != nullptr && environment_variable(place.local_world_size).has_value();
  if (has_local_size) info.local_world_size = reader.number(place.local_world_size, 1);
  if (place.from_launcher) {
    read_from_launcher(reader, info);
  } else {
    read_without_launcher(reader, info);
  }
  reader.require_below(place.rank, info.rank, place.world_size, info.world_size);
  if (has_local_size) {
    reader.require_below(place.local_rank, info.local_rank, place.local_world_size, info.local_world_size);
  }
  reader.throw_if_wrong();
  return info;
}

void record_error(const std::exception& error) {
  absl::Status status;
  if (const Error* own = dynamic_cast<const Error*>(&error)) {
    status = own->status();
  } else if (const std::exception_ptr current = std::current_exception()) {
    status = status_from_exception(current);
  } else {
    status = absl::UnknownError(error.what());
  }
  tools::write_error_file(status);
}

}  // namespace gradwire
