#include "gradwire/tools/inspect/dump/dump_command.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"
#include "gradwire/tools/inspect/dump/flight_paths.h"
#include "gradwire/tools/inspect/dump/flight_text.h"

namespace gradwire::tools {
namespace {

constexpr char kUsage[] =
    "usage: inspect dump [--lines=N] PATH...\n"
    "  PATH       a flight record (*.jsonl), or a directory with flight records\n"
    "  --lines=N  the most lines of each list; default 50\n";
constexpr std::size_t kDefaultLines = 50;

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
    } else {
      paths.push_back(argument);
    }
  }
  if (arguments.empty()) {
    absl::StrAppend(&errors, kUsage);
    return 2;
  }
  std::vector<FlightFile> files = read_flight_paths(paths, errors);
  if (files.empty()) {
    absl::StrAppend(&errors, "found no flight records\n");
    return 1;
  }
  const FlightJoin join = join_flight_files(files);
  absl::StrAppend(&out, flight_text(files, join, lines));
  return 0;
}

}  // namespace gradwire::tools
