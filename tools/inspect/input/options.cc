#include "gradwire/tools/inspect/input/options.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"

namespace gradwire::inspect {
namespace {

constexpr char kUsage[] = R"(usage: inspect [options]
       inspect --list
       inspect serve [options]
       inspect dump [--lines=N] PATH...
       inspect trace [--out=FILE] [--profiler=[WORKER=]FILE]... PATH...
       inspect trace [--out=FILE] [--profiler=[WORKER=]FILE]... --seconds=N [--store=PLACE] [credentials]

Shows what a running job of Gradwire does: its workers, their calls, connections, references and process
groups, and the problems that they have. It finds the job by its store, asks each worker, and changes nothing
in the job. docs/observability.md describes what it shows. "inspect serve" serves a page for a browser of this
host, and prints the address of the page, which has a secret token.

Without --store it takes MASTER_ADDR and MASTER_PORT, as the workers do. If they are not set, it takes the
only job that a launcher of this user runs on this host, with its credentials.

  --list               print the jobs that launchers of this user run on this host, and end
  --job=ID             take the one with this id, or with the launcher of this process id
  --store=PLACE        the job's store: HOST:PORT, tcp://HOST:PORT or file:///PATH. For a job whose init
                       method is multicast: that method
  --once               print the state as text, and end
  --json               with --once: print it as JSON
  --listen=HOST:PORT   with serve: where the page is served (127.0.0.1:0: any free port). An address that
                       other hosts reach needs --insecure
  --flight=PATH        with serve: flight records of the job, for the last backward pass
  --interval=SECONDS   the time between two readings (1). --once reads twice, for the rates
  --timeout=SECONDS    how long a worker or the store may take to answer (3)
  --most=N             the most entries of each list of a worker, up to 1024 (64)
  --name=NAME          the name for the workers' policies (inspect). With certificates: that in them

  credentials, if they come neither from the environment nor from the launcher (docs/security.md):
  --token_file=FILE    the token of the job
  --certificate_file=FILE, --key_file=FILE, --authority_file=FILE
  --insecure           the job was started with it

  from which values on something is a problem:
  --slow_call=SECONDS  a call in progress (5)
  --late_rank=SECONDS  a collective for which a rank is late (2)
  --leak=N             RRefs of one type and holder (1000) whose oldest is older than
  --leak_age=SECONDS   this (60)
  --hot_queue=N        calls that wait for one serial object (8), the oldest for longer than
  --hot_wait=SECONDS   this (1)
  --slow_store=SECONDS the mean time of a worker's last calls to the store (0.2)
  --no_room=SECONDS    the time since a large message found no room in shared memory (10)
  --wrong_clock=SECONDS  the difference of a worker's wall clock from the others (1)

With --once the exit status is 0 if no problem was found, 3 if one was found, and 1 if the job cannot be read.
It is 2 for a wrong command line. "inspect dump" prints flight records that workers have written.

"inspect trace" makes a trace for Perfetto (https://ui.perfetto.dev) of such files, in directories and the
folders below them, or with --seconds of what a running job does in the next N seconds:

  --out=FILE, -o FILE  the trace (trace.json)
  --seconds=N          how long the running job is recorded, 0.1 to 3600. --store, --job, --timeout, --name
                       and the credentials have the same meaning as above
  --profiler=FILE      adds the events of libtorch's profiler, as it has exported them. With several workers
                       --profiler=WORKER=FILE says whose they are; repeatable
)";

absl::Status parse_seconds(absl::string_view text, absl::Duration least, absl::Duration& out) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= absl::ToDoubleSeconds(least)) || seconds > 86'400) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", text, "\", expected seconds from ",
                                                   absl::ToDoubleSeconds(least), " to 86400"));
  }
  out = absl::Seconds(seconds);
  return absl::OkStatus();
}

template <class T>
absl::Status parse_number(absl::string_view text, T least, T most, T& out) {
  T number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("got \"", text, "\", expected a number from ", least, " to ", most));
  }
  out = number;
  return absl::OkStatus();
}

struct Option {
  bool has_value = true;
  std::function<absl::Status(absl::string_view)> apply;
};
using Table = std::map<std::string, Option>;

Option flag(bool& target) {
  return {false, [&target](absl::string_view) {
            target = true;
            return absl::OkStatus();
          }};
}

Option text(std::string& target) {
  return {true, [&target](absl::string_view value) {
            target = std::string(value);
            return value.empty() ? absl::InvalidArgumentError("it is empty") : absl::OkStatus();
          }};
}

Option seconds(absl::Duration& target, absl::Duration least = absl::ZeroDuration()) {
  return {true, [&target, least](absl::string_view value) { return parse_seconds(value, least, target); }};
}

// Where a job is, and how to prove that one belongs to it.
Table place_table(JobPlace& place) {
  SecurityOptions& security = place.security;
  return {
      {"timeout", seconds(place.timeout, absl::Milliseconds(100))},
      {"store", text(place.store)},
      {"job", text(place.job)},
      {"name", text(place.name)},
      {"token_file", text(security.token_file)},
      {"certificate_file", text(security.certificate_file)},
      {"key_file", text(security.key_file)},
      {"authority_file", text(security.authority_file)},
      {"insecure", flag(security.insecure)},
  };
}

Table option_table(Options& options, Command command) {
  Table table = place_table(options.place);
  table.insert({
      {"help", flag(options.help)},
      // A worker answers at most 20 times a second.
      {"interval", seconds(options.interval, absl::Milliseconds(100))},
      {"most",
       {true, [&](absl::string_view v) { return parse_number<uint32_t>(v, 1, 1024, options.place.most); }}},
      {"slow_call", seconds(options.thresholds.slow_call)},
      {"late_rank", seconds(options.thresholds.late_rank)},
      {"leak",
       {true,
        [&](absl::string_view v) {
          return parse_number<uint64_t>(v, 1, uint64_t{1} << 40, options.thresholds.rrefs);
        }}},
      {"leak_age", seconds(options.thresholds.rref_age)},
      {"hot_queue",
       {true,
        [&](absl::string_view v) {
          return parse_number<uint64_t>(v, 1, uint64_t{1} << 40, options.thresholds.hot_queue);
        }}},
      {"hot_wait", seconds(options.thresholds.hot_wait)},
      {"slow_store", seconds(options.thresholds.slow_store)},
      {"no_room", seconds(options.thresholds.no_room)},
      {"wrong_clock", seconds(options.thresholds.wrong_clock)},
  });
  if (command == Command::kServe) {
    table.insert({{"listen", text(options.listen)}, {"flight", text(options.flight)}});
  } else {
    table.insert({{"once", flag(options.once)}, {"json", flag(options.json)}, {"list", flag(options.list)}});
  }
  return table;
}

absl::Status parse_period(absl::string_view text, absl::Duration& period) {
  GRADWIRE_RETURN_IF_ERROR(parse_seconds(text, absl::Milliseconds(100), period));
  if (period <= absl::Hours(1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("got \"", text, "\", expected at most 3600 seconds"));
}

// [WORKER=]FILE. A path with "=" needs the name of the worker.
absl::Status add_profile(absl::string_view text, std::vector<TraceOptions::Profile>& profiles) {
  const std::size_t equals = text.find('=');
  const bool named = equals != absl::string_view::npos;
  TraceOptions::Profile profile{.worker = std::string(named ? text.substr(0, equals) : ""),
                                .path = std::string(named ? text.substr(equals + 1) : text)};
  if (profile.path.empty() || (named && profile.worker.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", text, "\", expected FILE or WORKER=FILE"));
  }
  profiles.push_back(std::move(profile));
  return absl::OkStatus();
}

Table trace_table(TraceOptions& options) {
  Table table = place_table(options.place);
  table.insert({
      {"help", flag(options.help)},
      {"out", text(options.out)},
      {"seconds", {true, [&](absl::string_view v) { return parse_period(v, options.period); }}},
      {"profiler", {true, [&](absl::string_view v) { return add_profile(v, options.profiles); }}},
  });
  return table;
}

// Parses all arguments. Others than options go to `rest`, or are refused if it is null.
absl::Status apply(const Table& table, const std::vector<std::string>& arguments,
                   std::vector<std::string>* rest) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "-h") argument = "--help";
    if (argument == "-o" && rest != nullptr) argument = "--out";
    absl::string_view option = argument;
    if (!absl::ConsumePrefix(&option, "--")) {
      if (rest == nullptr || absl::StartsWith(argument, "-")) {
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", argument, "\"; see --help"));
      }
      rest->push_back(arguments[i]);
      continue;
    }
    const std::size_t equals = option.find('=');
    const std::string name = absl::StrReplaceAll(option.substr(0, equals), {{"-", "_"}});
    const auto found = table.find(name);
    if (found == table.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown option --", name, "; see --help"));
    }
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      value = option.substr(equals + 1);
      if (!found->second.has_value) {
        return absl::InvalidArgumentError(absl::StrCat("option --", name, " has no value"));
      }
    } else if (found->second.has_value) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("option --", name, " needs a value"));
      }
      value = arguments[++i];
    }
    if (absl::Status applied = found->second.apply(value); !applied.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("option --", name, ": ", applied.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status check_place(const JobPlace& place) {
  if (place.job.empty() || place.store == JobPlace().store) return absl::OkStatus();
  return absl::InvalidArgumentError("--job and --store exclude each other");
}

}  // namespace

std::string usage() { return kUsage; }

absl::StatusOr<Options> parse_options(const std::vector<std::string>& arguments, Command command) {
  Options options;
  GRADWIRE_RETURN_IF_ERROR(apply(option_table(options, command), arguments, /*rest=*/nullptr));
  GRADWIRE_RETURN_IF_ERROR(check_place(options.place));
  options.insecure_page = options.place.security.insecure;
  if (options.json && !options.once) return absl::InvalidArgumentError("--json needs --once");
  return options;
}

absl::StatusOr<TraceOptions> parse_trace_options(const std::vector<std::string>& arguments) {
  TraceOptions options;
  GRADWIRE_RETURN_IF_ERROR(apply(trace_table(options), arguments, &options.paths));
  GRADWIRE_RETURN_IF_ERROR(check_place(options.place));
  if (options.help) return options;
  if (options.paths.empty() == (options.period == absl::ZeroDuration())) {
    return absl::InvalidArgumentError(
        "give either files and directories with flight records, or --seconds=N for a running job; see "
        "--help");
  }
  return options;
}

}  // namespace gradwire::inspect
