#include "gradwire/tools/launch/process/error_files.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {

void ErrorFiles::prepare(const std::string& log_directory) {
  if (!directory_.empty()) return;
  if (!log_directory.empty()) {
    directory_ = log_directory;
    return;
  }
  const char* const temporary = std::getenv("TMPDIR");
  std::string path = absl::StrCat(temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary,
                                  "/gradwire_errors_XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return;
  directory_ = std::move(path);
  temporary_ = true;
}

std::string ErrorFiles::path(int64_t round, int local_rank) const {
  if (directory_.empty()) return "";
  const std::string place = absl::StrCat(directory_, "/attempt_", round, "/", local_rank);
  std::error_code error;
  std::filesystem::create_directories(place, error);
  return error ? "" : absl::StrCat(place, "/error.json");
}

ErrorFiles::~ErrorFiles() {
  if (!temporary_) return;
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

}  // namespace gradwire::tools
