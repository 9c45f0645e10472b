#include "gradwire/tools/launch/options/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::tools {
namespace {

constexpr int kMaxGpus = 1024;

// Counts the entries of `directory` whose name is `prefix` and a number; all entries if `prefix` is empty.
int count_entries(const std::string& directory, absl::string_view prefix) {
  std::error_code error;
  int count = 0;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int number = 0;
    if (prefix.empty() || (absl::StartsWith(name, prefix) &&
                           absl::SimpleAtoi(absl::string_view(name).substr(prefix.size()), &number))) {
      ++count;
    }
  }
  return std::min(count, kMaxGpus);
}

// Counts as the CUDA runtime does: an invalid entry hides itself and all entries after it.
int count_chosen(absl::string_view list, int devices) {
  std::set<std::string> chosen;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    const bool is_index = absl::SimpleAtoi(entry, &index);
    const bool names_a_device = is_index ? index >= 0 && index < devices
                                         : absl::StartsWith(entry, "GPU-") || absl::StartsWith(entry, "MIG-");
    if (!names_a_device) break;
    // CUDA sees no device if one is named twice.
    if (!chosen.insert(is_index ? absl::StrCat(index) : std::string(entry)).second) return 0;
  }
  return std::min(static_cast<int>(chosen.size()), kMaxGpus);
}

}  // namespace

int count_visible_gpus(const std::optional<std::string>& cuda_visible_devices,
                       const std::string& device_directory, const std::string& driver_directory) {
  int devices = count_entries(device_directory, "nvidia");
  if (devices == 0) devices = count_entries(driver_directory, "");
  if (devices == 0 || !cuda_visible_devices) return devices;
  return count_chosen(*cuda_visible_devices, devices);
}

int count_visible_gpus() {
  const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  return count_visible_gpus(chosen == nullptr ? std::nullopt : std::optional<std::string>(chosen));
}

absl::StatusOr<std::string> choose_device(int gpus, int local_rank, int local_world_size) {
  if (gpus == 0) return "cpu";
  if (local_world_size > gpus || local_rank >= gpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("this node has ", local_world_size, " workers and ", gpus,
                     " visible GPUs, but each worker needs a GPU of its own: start fewer workers "
                     "(--nproc_per_node=gpu starts one per GPU) or check CUDA_VISIBLE_DEVICES"));
  }
  return absl::StrCat("cuda:", local_rank);
}

}  // namespace gradwire::tools
