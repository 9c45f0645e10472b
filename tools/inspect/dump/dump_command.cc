#include "gradwire/tools/inspect/dump/dump_command.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"

namespace gradwire::tools {
namespace {

std::string milliseconds(int64_t nanoseconds) {
  return absl::StrFormat("%.3f ms", static_cast<double>(nanoseconds) / 1e6);
}

// A list with a title, cut after a number of lines.
class List {
 public:
  List(std::string& out, const std::string& title, std::size_t size, std::size_t most)
      : out_(out), left_(most), more_(size > most ? size - most : 0) {
    absl::StrAppend(&out_, title, size == 0 ? ": none\n" : ":\n");
  }
  ~List() {
    if (more_ > 0) absl::StrAppend(&out_, "  and ", more_, " more (--lines)\n");
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  void add(const std::string& line) {
    if (left_ == 0) return;
    --left_;
    absl::StrAppend(&out_, "  ", line, "\n");
  }

 private:
  std::string& out_;
  std::size_t left_;
  const std::size_t more_;
};

class Writer {
 public:
  Writer(const std::vector<FlightFile>& files, const FlightJoin& join, std::size_t lines)
      : files_(files), join_(join), lines_(lines) {}

  std::string text() {
    write_files();
    write_chains();
    write_calls();
    write_passes();
    write_groups();
    write_clocks();
    return std::move(out_);
  }

 private:
  std::string name_of(uint64_t incarnation) const {
    const auto found = join_.names.find(incarnation);
    return found == join_.names.end() ? absl::StrCat("worker 0x", absl::Hex(incarnation))
                                      : absl::StrCat("\"", found->second, "\"");
  }
  // The call without its ends.
  static std::string call(const FlightCall& call) {
    return absl::StrCat("\"", call.name, "\" (0x", absl::Hex(call.identity.caller), "#", call.identity.number,
                        ")");
  }

  void write_files() {
    List list(out_, "Files", files_.size(), lines_);
    for (const FlightFile& file : files_) {
      list.add(absl::StrCat(
          file.path, ": ", file.is_group ? file.title : absl::StrCat("worker \"", file.title, "\""),
          ", process ", file.process, ", written ",
          absl::FormatTime("%Y-%m-%d %H:%M:%E3S UTC", absl::FromUnixNanos(file.wall_ns), absl::UTCTimeZone()),
          file.crash ? ", in a crash: " : ": ", file.reason,
          file.bad_lines == 0 ? "" : absl::StrCat("; ", file.bad_lines, " lines are malformed"),
          file.truncated ? "; the end is missing" : ""));
    }
  }

  void write_chains() {
    List list(out_, "Open calls, each below the one whose handler has made it", join_.chains.size(), lines_);
    for (const ChainLink& link : join_.chains) {
      const FlightCall& any = link.made != nullptr ? *link.made : *link.served;
      const uint64_t callee = link.made != nullptr ? link.made->peer : 0;
      std::string line(static_cast<std::size_t>(link.depth) * 2, ' ');
      absl::StrAppend(&line, name_of(any.identity.caller), " -> ", callee == 0 ? "?" : name_of(callee), " ",
                      call(any));
      if (link.made == nullptr) {
        absl::StrAppend(&line, ", not in a file of its caller");
      } else if (!link.made->state.empty()) {
        absl::StrAppend(&line, ", ", link.made->state);
      }
      if (link.served == nullptr) {
        absl::StrAppend(&line, ", not in a file of its callee");
      } else if (!link.served->open()) {
        absl::StrAppend(&line, ", answered with ", link.served->code);
      } else {
        absl::StrAppend(&line, ", at the callee: ",
                        !link.served->state.empty() ? link.served->state
                        : link.served->started != 0 ? "running"
                                                    : "not started");
      }
      list.add(line);
    }
  }

  void write_calls() {
    {
      List list(out_, "Calls that their callee has never seen", join_.never_seen.size(), lines_);
      for (const FlightCall* made : join_.never_seen) {
        list.add(absl::StrCat(name_of(made->identity.caller), " -> ", name_of(made->peer), " ", call(*made),
                              ": ", made->open() ? "open" : absl::StrCat("ended with ", made->code)));
      }
    }
    List list(out_, "Calls that were answered, but their caller has no answer", join_.answers_lost.size(),
              lines_);
    for (const auto& [made, served] : join_.answers_lost) {
      list.add(absl::StrCat(name_of(made->identity.caller), " -> ", name_of(made->peer), " ", call(*made),
                            ": answered with ", served->code, " after ",
                            milliseconds(served->ended - served->began), "; the caller ",
                            made->open() ? "still waits"
                                         : absl::StrCat("ended it with ", made->code, " after ",
                                                        milliseconds(made->ended - made->began))));
    }
  }

  void write_passes() {
    std::vector<std::string> open;
    for (const FlightFile& file : files_) {
      for (const FlightPass& pass : file.passes) {
        if (pass.ended != 0) continue;
        open.push_back(absl::StrCat("\"", file.title, "\" takes part in pass #", pass.number, " of ",
                                    name_of(pass.root), " since ", milliseconds(file.clock_ns - pass.began)));
      }
    }
    List list(out_, "Open backward passes", open.size(), lines_);
    for (const std::string& line : open) list.add(line);
  }

  void write_groups() {
    for (const FlightFile& file : files_) {
      if (!file.is_group) continue;
      std::vector<const FlightCollective*> shown;
      int64_t last = -1;
      for (const FlightCollective& operation : file.collectives) {
        if (operation.state != "done") shown.push_back(&operation);
        last = std::max(last, operation.sequence);
      }
      List list(out_,
                absl::StrCat("Operations of ", file.title, " that are open or have failed (the last is ",
                             last < 0 ? std::string("none") : absl::StrCat("#", last), ")"),
                shown.size(), lines_);
      for (const FlightCollective* operation : shown) {
        list.add(absl::StrCat(operation->sequence < 0 ? "-" : absl::StrCat("#", operation->sequence), " ",
                              operation->operation, ": ", operation->state,
                              operation->code.empty() ? "" : " ", operation->code, ", called ",
                              milliseconds(file.clock_ns - operation->began), " before"));
      }
    }
  }

  void write_clocks() {
    List list(out_, "Clocks", join_.clocks.size(), lines_);
    for (const ClockOffset& offset : join_.clocks) {
      list.add(absl::StrFormat("%s is %.3f ms %s %s, +- %.3f ms (%d calls)", name_of(offset.to),
                               std::abs(static_cast<double>(offset.ahead_ns)) / 1e6,
                               offset.ahead_ns < 0 ? "behind" : "ahead of", name_of(offset.from),
                               static_cast<double>(offset.error_ns) / 1e6, offset.calls));
    }
  }

  const std::vector<FlightFile>& files_;
  const FlightJoin& join_;
  const std::size_t lines_;
  std::string out_;
};

// Describes joined files as text, at most `lines` lines in each list.
std::string flight_text(const std::vector<FlightFile>& files, const FlightJoin& join, std::size_t lines) {
  return Writer(files, join, lines).text();
}

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
