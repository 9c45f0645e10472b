#include "gradwire/tools/inspect/dump/dump_command.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"
#include "gradwire/tools/inspect/dump/flight_text.h"

namespace gradwire::tools {
namespace {

constexpr char kUsage[] =
    "usage: inspect dump [--lines=N] PATH...\n"
    "  PATH       a flight record (*.jsonl), or a directory with flight records\n"
    "  --lines=N  the most lines of each list; default 50\n";
constexpr std::size_t kDefaultLines = 50;

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

int dump_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors) {
  std::size_t lines = kDefaultLines;
  std::vector<std::string> paths;
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "--lines=")) {
      if (!absl::SimpleAtoi(absl::StripPrefix(argument, "--lines="), &lines) || lines == 0) {
        absl::StrAppend(&errors, "--lines must be a positive number, got ", argument, "\n", kUsage);
        return 2;
      }
    } else if (absl::StartsWith(argument, "-")) {
      absl::StrAppend(&errors, "unknown option: got ", argument, "\n", kUsage);
      return 2;
    } else if (is_directory(argument)) {
      absl::StatusOr<std::vector<std::string>> found = find_flight_files(argument);
      if (!found.ok()) absl::StrAppend(&errors, found.status().message(), "\n");
      if (found.ok()) paths.insert(paths.end(), found->begin(), found->end());
    } else {
      paths.push_back(argument);
    }
  }
  if (arguments.empty()) {
    absl::StrAppend(&errors, kUsage);
    return 2;
  }
  std::vector<FlightFile> files;
  for (const std::string& path : paths) {
    absl::StatusOr<FlightFile> file = read_flight_file(path);
    if (file.ok()) {
      files.push_back(*std::move(file));
    } else {
      absl::StrAppend(&errors, file.status().message(), "\n");
    }
  }
  if (files.empty()) {
    absl::StrAppend(&errors, "found no flight records\n");
    return 1;
  }
  const FlightJoin join = join_flight_files(files);
  absl::StrAppend(&out, flight_text(files, join, lines));
  return 0;
}

}  // namespace gradwire::tools
