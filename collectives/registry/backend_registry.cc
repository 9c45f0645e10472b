#include "gradwire/collectives/registry/backend_registry.h"

#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives {
namespace {

constexpr std::array<Backend, 3> kAll = {Backend::kCpu, Backend::kMpi, Backend::kNccl};

// Entries are never destroyed, so pointers to them stay valid.
struct Registry {
  ProcessMutex mutex;
  std::array<std::unique_ptr<const BackendEntry>, kAll.size()> entries ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<const BackendEntry>> replaced ABSL_GUARDED_BY(mutex);
  std::map<c10::DeviceType, AcceleratorBackend> accelerators ABSL_GUARDED_BY(mutex);
};

Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

std::optional<Backend> parse_name(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  if (lower == "cpu" || lower == "gloo" || lower == "tcp") return Backend::kCpu;
  if (lower == "mpi") return Backend::kMpi;
  if (lower == "nccl") return Backend::kNccl;
  return std::nullopt;
}

std::string built_in() {
  std::vector<std::string> names;
  for (Backend backend : registered_backends()) {
    names.push_back(backend == Backend::kCpu ? "cpu (also gloo, tcp)" : to_string(backend));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

}  // namespace

void register_backend(Backend backend, BackendEntry entry) {
  MutexLock lock(registry().mutex);
  auto& slot = registry().entries[static_cast<std::size_t>(backend)];
  // find_backend() returns pointers without a lock, so a replaced entry is kept.
  if (slot != nullptr) registry().replaced.push_back(std::move(slot));
  slot = std::make_unique<const BackendEntry>(entry);
}

const BackendEntry* find_backend(Backend backend) {
  MutexLock lock(registry().mutex);
  return registry().entries[static_cast<std::size_t>(backend)].get();
}

void register_accelerator_backend(AcceleratorBackend backend) {
  MutexLock lock(registry().mutex);
  registry().accelerators[backend.type] = std::move(backend);
}

std::vector<AcceleratorBackend> accelerator_backends() {
  std::map<c10::DeviceType, AcceleratorBackend> found;
  if (const BackendEntry* const nccl = find_backend(Backend::kNccl); nccl != nullptr) {
    found[c10::DeviceType::CUDA] = {c10::DeviceType::CUDA, to_string(Backend::kNccl), nccl->make};
  }
  {
    MutexLock lock(registry().mutex);
    for (const auto& [type, backend] : registry().accelerators) found[type] = backend;
  }
  std::vector<AcceleratorBackend> list;
  for (auto& [type, backend] : found) list.push_back(std::move(backend));
  return list;
}

std::vector<Backend> registered_backends() {
  std::vector<Backend> found;
  for (Backend backend : kAll) {
    if (find_backend(backend) != nullptr) found.push_back(backend);
  }
  return found;
}

absl::StatusOr<Backend> find_backend_name(absl::string_view name) {
  const std::optional<Backend> backend = parse_name(name);
  if (backend.has_value() && find_backend(*backend) != nullptr) return *backend;
  return absl::InvalidArgumentError(absl::StrCat(
      "the backend \"", name, "\" is ", backend.has_value() ? "not built into this program" : "unknown",
      "; available backends: ", built_in()));
}

Backend parse_backend(absl::string_view name) { return value_or_throw(find_backend_name(name)); }

std::string to_string(Backend backend) {
  switch (backend) {
    case Backend::kCpu:
      return "cpu";
    case Backend::kMpi:
      return "mpi";
    case Backend::kNccl:
      return "nccl";
  }
  return "?";
}

bool is_available() { return true; }
bool is_mpi_available() { return find_backend(Backend::kMpi) != nullptr; }
bool is_nccl_available() { return find_backend(Backend::kNccl) != nullptr; }

}  // namespace gradwire::collectives
