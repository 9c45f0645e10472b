#include "gradwire/tools/inspect/dump/flight_paths.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {
namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

std::vector<FlightFile> read_flight_paths(const std::vector<std::string>& paths, std::string& errors) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (!is_directory(path)) {
      names.push_back(path);
      continue;
    }
    absl::StatusOr<std::vector<std::string>> found = find_flight_files(path);
    if (!found.ok()) absl::StrAppend(&errors, found.status().message(), "\n");
    if (found.ok()) names.insert(names.end(), found->begin(), found->end());
  }
  std::vector<FlightFile> files;
  for (const std::string& name : names) {
    absl::StatusOr<FlightFile> file = read_flight_file(name);
    if (file.ok()) {
      files.push_back(*std::move(file));
    } else {
      absl::StrAppend(&errors, file.status().message(), "\n");
    }
  }
  return files;
}

}  // namespace gradwire::tools
