#include "gradwire/tools/launch/options/cluster.h"

#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

absl::StatusOr<int> read_int(const Variables& variables, const std::string& name, int low,
                             int high = kNoLimit) {
  const std::string text = variables(name).value_or("");
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      high == kNoLimit
          ? absl::StrCat("environment variable ", name, "=\"", text, "\" is not a number of ", low,
                         " or more")
          : absl::StrCat("environment variable ", name, "=\"", text, "\" is not in ", low, "..", high));
}

absl::StatusOr<std::optional<int>> read_if_set(const Variables& variables, const std::string& name) {
  if (!variables(name)) return std::nullopt;
  return read_int(variables, name, 1);
}

// Returns the first of these names whose variable is set, or "".
std::string first_set(const Variables& variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (variables(name)) return name;
  }
  return "";
}

// The ranks are those of processes. They are ranks of nodes only if mpirun has started one launcher on each
// node.
absl::StatusOr<ClusterPlace> read_open_mpi(const Variables& variables) {
  ClusterPlace place{.system = "Open MPI"};
  GRADWIRE_ASSIGN_OR_RETURN(const int size, read_int(variables, "OMPI_COMM_WORLD_SIZE", 1));
  GRADWIRE_ASSIGN_OR_RETURN(const int rank, read_int(variables, "OMPI_COMM_WORLD_RANK", 0, size - 1));
  GRADWIRE_ASSIGN_OR_RETURN(place.launchers_per_node, read_int(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  if (place.launchers_per_node > 1) return place;
  place.nnodes = size;
  place.node_rank = rank;
  return place;
}

// 1. Without a step: the launcher runs in a batch script or in salloc's shell, which have the job's
//    variables too. It uses this node only, and the note says so.
// 2. More tasks than nodes: several launchers on a node, which is reported.
// 3. One launcher on each node of the step: Slurm's node ids are the ranks, and the first host of the step's
//    list is node 0.
absl::StatusOr<ClusterPlace> read_slurm(const Variables& variables) {
  ClusterPlace place{.system = "Slurm", .run_id = variables("SLURM_JOB_ID")};
  const std::string step = first_set(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
  const std::string nodes_name =
      first_set(variables, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (nodes_name.empty()) return place;
  GRADWIRE_ASSIGN_OR_RETURN(const int nodes, read_int(variables, nodes_name, 1));
  if (step.empty()) {
    if (nodes > 1) {
      place.note =
          absl::StrCat("Slurm has allocated ", nodes,
                       " nodes to this job, but this launcher uses only its own: start a launcher on "
                       "each node with srun (srun --ntasks-per-node=1 ...)");
    }
    return place;
  }
  const std::string tasks_name = first_set(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  GRADWIRE_ASSIGN_OR_RETURN(const std::optional<int> tasks, read_if_set(variables, tasks_name));
  if (tasks.value_or(nodes) > nodes) {
    place.launchers_per_node = (*tasks + nodes - 1) / nodes;
    return place;
  }
  // Use job and step: a second srun in one Slurm job is another run.
  if (place.run_id) place.run_id = absl::StrCat(*place.run_id, ".", *variables(step));
  GRADWIRE_ASSIGN_OR_RETURN(place.node_rank, read_int(variables, "SLURM_NODEID", 0, nodes - 1));
  place.nnodes = nodes;
  if (nodes == 1) return place;
  const std::string list_name = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  if (list_name.empty()) return place;
  absl::StatusOr<std::vector<std::string>> hosts = expand_host_list(*variables(list_name));
  if (!hosts.ok()) return with_context(hosts.status(), absl::StrCat("environment variable ", list_name));
  // A list of the whole job's nodes cannot be used for a step that runs on some of them.
  if (static_cast<int>(hosts->size()) == nodes) place.master_addr = hosts->front();
  return place;
}

// An indexed Job has one launcher for each pod. The number of pods is not in the environment.
absl::StatusOr<ClusterPlace> read_kubernetes(const Variables& variables) {
  ClusterPlace place{.system = "Kubernetes"};
  GRADWIRE_ASSIGN_OR_RETURN(place.node_rank, read_int(variables, "JOB_COMPLETION_INDEX", 0));
  return place;
}

}  // namespace

absl::StatusOr<std::optional<ClusterPlace>> read_cluster(const Variables& variables) {
  if (variables("OMPI_COMM_WORLD_RANK")) return read_open_mpi(variables);
  if (variables("SLURM_JOB_ID")) return read_slurm(variables);
  if (variables("JOB_COMPLETION_INDEX")) return read_kubernetes(variables);
  return std::nullopt;
}

// Expands Slurm's lists of hosts: "n[01-03,7]x,login" is n01x, n02x, n03x, n7x, login. The list comes from
// the environment, so every number is bounded before memory is allocated for it.

namespace {

constexpr size_t kMaxHosts = 65536;
constexpr size_t kMaxDigits = 9;
constexpr size_t kMaxName = 255;

absl::Status not_a_list(absl::string_view part) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(part.substr(0, kMaxName)), "\" is not a list of hosts"));
}

bool is_number(absl::string_view text) {
  if (text.empty() || text.size() > kMaxDigits) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

// Expands "001-003,7" to 001, 002, 003, 7. The numbers of a range are as wide as its first number.
absl::StatusOr<std::vector<std::string>> expand_ranges(absl::string_view ranges) {
  std::vector<std::string> numbers;
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!is_number(ends.front()) || !is_number(ends.back()) || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first) {
      return not_a_list(range);
    }
    if (last - first >= kMaxHosts - numbers.size())
      return absl::InvalidArgumentError("the list has too many hosts");
    const int width = static_cast<int>(ends.front().size());
    for (uint32_t number = first; number <= last; ++number) {
      numbers.push_back(absl::StrFormat("%0*d", width, number));
    }
  }
  return numbers;
}

// Expands one name with its brackets. Each bracket multiplies the names so far by its numbers.
absl::StatusOr<std::vector<std::string>> expand_name(absl::string_view name) {
  const absl::string_view whole = name;
  std::vector<std::string> hosts = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    const absl::string_view plain = name.substr(0, open);
    for (char c : plain) {
      if (!absl::ascii_isgraph(c) || c == ']') return not_a_list(whole);
    }
    for (std::string& host : hosts) absl::StrAppend(&host, plain);
    if (open == absl::string_view::npos) break;
    const size_t close = name.find(']', open);
    if (close == absl::string_view::npos) return not_a_list(whole);
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                              expand_ranges(name.substr(open + 1, close - open - 1)));
    if (hosts.size() * numbers.size() > kMaxHosts)
      return absl::InvalidArgumentError("the list has too many hosts");
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_host_list(absl::string_view list) {
  constexpr size_t kMaxLength = size_t{1} << 20;
  if (list.size() > kMaxLength) return absl::InvalidArgumentError("the list has too many hosts");
  std::vector<std::string> all;
  while (true) {
    // A name ends at a comma outside of brackets.
    bool in_brackets = false;
    size_t end = 0;
    for (; end < list.size() && (in_brackets || list[end] != ','); ++end) {
      if (list[end] == '[') in_brackets = true;
      if (list[end] == ']') in_brackets = false;
    }
    if (end == 0 || end > size_t{16} * kMaxName) return not_a_list(list.substr(0, end));
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, expand_name(list.substr(0, end)));
    if (all.size() + hosts.size() > kMaxHosts)
      return absl::InvalidArgumentError("the list has too many hosts");
    all.insert(all.end(), hosts.begin(), hosts.end());
    if (end == list.size()) return all;
    list.remove_prefix(end + 1);
  }
}

}  // namespace gradwire::tools
