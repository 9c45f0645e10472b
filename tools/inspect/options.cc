#include "gradwire/tools/inspect/options.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace gradwire::inspect {
namespace {

constexpr char kUsage[] = R"(usage: inspect [options]
       inspect --list
       inspect serve [options]
       inspect dump [--lines=N] PATH...
       inspect trace [--out=FILE] PATH...

Shows what a running job of Gradwire does: its workers, their calls, connections, references and process
groups, and the problems that they have. It finds the job by its store, asks each worker, and changes nothing
in the job. docs/observability.md describes what it shows. "inspect serve" serves a page for a browser of this
host, and prints the address of the page, which has a secret token.

Without --store it takes MASTER_ADDR and MASTER_PORT, as the workers do. If they are not set, it takes the
only job that a launcher of this user runs on this host, with its credentials.

  --list               print the jobs that launchers of this user run on this host, and end
  --job=ID             take the one with this id, or with the launcher of this process id
  --store=PLACE        the job's store: HOST:PORT, tcp://HOST:PORT or file:///PATH
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

With --once the exit status is 0 if no problem was found, 3 if one was found, and 1 if the job cannot be read.
It is 2 for a wrong command line. "inspect dump" prints flight records that workers have written, and
"inspect trace" makes a trace of them for Perfetto.
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

std::map<std::string, Option> option_table(Options& options, Command command) {
  const auto flag = [](bool& target) {
    return Option{false, [&target](absl::string_view) {
                    target = true;
                    return absl::OkStatus();
                  }};
  };
  const auto text = [](std::string& target) {
    return Option{true, [&target](absl::string_view value) {
                    target = std::string(value);
                    return value.empty() ? absl::InvalidArgumentError("it is empty") : absl::OkStatus();
                  }};
  };
  const auto seconds = [](absl::Duration& target, absl::Duration least = absl::ZeroDuration()) {
    return Option{true,
                  [&target, least](absl::string_view value) { return parse_seconds(value, least, target); }};
  };
  SecurityOptions& security = options.place.security;
  std::map<std::string, Option> table = {
      {"help", flag(options.help)},
      {"job", text(options.job)},
      // A worker answers at most 20 times a second.
      {"interval", seconds(options.interval, absl::Milliseconds(100))},
      {"timeout", seconds(options.place.timeout, absl::Milliseconds(100))},
      {"store", text(options.place.store)},
      {"name", text(options.place.name)},
      {"most",
       {true, [&](absl::string_view v) { return parse_number<uint32_t>(v, 1, 1024, options.place.most); }}},
      {"token_file", text(security.token_file)},
      {"certificate_file", text(security.certificate_file)},
      {"key_file", text(security.key_file)},
      {"authority_file", text(security.authority_file)},
      {"insecure", flag(security.insecure)},
      {"slow_call", seconds(options.thresholds.slow_call)},
      {"late_rank", seconds(options.thresholds.late_rank)},
      {"leak",
       {true,
        [&](absl::string_view v) {
          return parse_number<uint64_t>(v, 1, uint64_t{1} << 40, options.thresholds.rrefs);
        }}},
      {"leak_age", seconds(options.thresholds.rref_age)},
  };
  if (command == Command::kServe) {
    table["listen"] = text(options.listen);
    table["flight"] = text(options.flight);
  } else {
    table["once"] = flag(options.once);
    table["json"] = flag(options.json);
    table["list"] = flag(options.list);
  }
  return table;
}

}  // namespace

std::string usage() { return kUsage; }

absl::StatusOr<Options> parse_options(const std::vector<std::string>& arguments, Command command) {
  Options options;
  std::map<std::string, Option> table = option_table(options, command);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "-h") argument = "--help";
    absl::string_view rest = argument;
    if (!absl::ConsumePrefix(&rest, "--")) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", argument, "\"; see --help"));
    }
    const std::size_t equals = rest.find('=');
    const std::string name = absl::StrReplaceAll(rest.substr(0, equals), {{"-", "_"}});
    const auto found = table.find(name);
    if (found == table.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown option --", name, "; see --help"));
    }
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      value = rest.substr(equals + 1);
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
  if (!options.job.empty() && options.place.store != JobPlace().store) {
    return absl::InvalidArgumentError("--job and --store exclude each other");
  }
  if (options.json && !options.once) return absl::InvalidArgumentError("--json needs --once");
  return options;
}

}  // namespace gradwire::inspect
