#include "gradwire/tools/launch/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/io/lines.h"
#include "gradwire/tools/launch/options/gpus.h"
#include "gradwire/tools/launch/options/option_table.h"

namespace gradwire::tools {
namespace {

using Value = OptionRow::Value;

absl::Status unknown_option(absl::string_view spelled) {
  const absl::string_view instead = replacement_of_option(absl::StripPrefix(spelled, "--"));
  if (!instead.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", spelled, " is supported only by torchrun: ", instead, "; see --help"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option ", spelled, "; see --help"));
}

// A parsed argument: "--log-dir=x", "-t3", "-t=3".
struct Split {
  std::string spelled;  // As written, for messages: "--log-dir".
  const OptionRow* row = nullptr;
  bool has_value = false;
  absl::string_view value;
};

absl::StatusOr<Split> split_option(absl::string_view arg) {
  const bool is_long = absl::StartsWith(arg, "--");
  const size_t end = is_long ? std::min(arg.find('='), arg.size()) : 2;
  Split split{.spelled = std::string(arg.substr(0, end)),
              .has_value = end < arg.size(),
              .value = absl::StripPrefix(arg.substr(end), "=")};
  split.row = is_long ? find_option(arg.substr(2, end - 2)) : find_option(arg[1]);
  if (split.row == nullptr) return unknown_option(is_long ? split.spelled : arg);
  if (split.has_value && split.row->value == Value::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", split.spelled, ": got \"", arg, "\", expected no value"));
  }
  if (split.has_value && split.value.empty() && split.row->value == Value::kOptional) {
    return absl::InvalidArgumentError(absl::StrCat("option ", split.spelled, ": expected a value after ="));
  }
  return split;
}

using Given = std::set<const OptionRow*>;

// Whether the options ask for something else than a job.
bool ends_early(const LaunchOptions& options) {
  return options.help || options.version || !options.make_token.empty();
}

// Reads the options, and after them the program.
// The first argument that is not an option is the program. All arguments after it belong to the program,
// even if they are spelled like options of the launcher.
absl::Status read_arguments(const std::vector<std::string>& args, OptionDraft& draft, Given& given) {
  size_t next = 0;
  while (next < args.size()) {
    const std::string& arg = args[next];
    if (arg == "--") {
      ++next;
      break;
    }
    if (arg.size() < 2 || arg[0] != '-') break;
    ++next;
    GRADWIRE_ASSIGN_OR_RETURN(Split split, split_option(arg));
    if (!split.has_value && split.row->value == Value::kWanted) {
      if (next == args.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("option ", split.spelled, " needs a value: ", split.row->value_name));
      }
      split.value = args[next++];
    }
    GRADWIRE_RETURN_IF_ERROR(
        with_context(split.row->apply(draft, split.value), absl::StrCat("option ", split.spelled)));
    if (ends_early(draft.options)) return absl::OkStatus();
    given.insert(split.row);
  }
  if (next < args.size()) {
    draft.options.program = args[next];
    draft.options.program_args.assign(args.begin() + next + 1, args.end());
  }
  return absl::OkStatus();
}

// Reads PET_NNODES and so on, as torchrun does, for options that are not among the arguments.
absl::Status read_environment(OptionDraft& draft, const Given& given) {
  for (const OptionRow& row : option_table()) {
    if (given.count(&row) > 0 || row.name == "help" || row.name == "version" || row.name == "make_token") {
      continue;
    }
    if (row.places_nodes && draft.options.standalone) continue;
    const std::string name = absl::StrCat("PET_", absl::AsciiStrToUpper(row.name));
    if (const std::optional<std::string> value = draft.host_info->variable(name)) {
      GRADWIRE_RETURN_IF_ERROR(
          with_context(row.apply(draft, *value), absl::StrCat("environment variable ", name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

LaunchHostInfo LaunchHostInfo::of_process() {
  return {.variable = [](const std::string& name) -> std::optional<std::string> {
            const char* value = std::getenv(name.c_str());
            if (value == nullptr || *value == '\0') return std::nullopt;
            return value;
          },
          .cores = std::max<int>(std::thread::hardware_concurrency(), 1),
          .visible_gpus = [] { return count_visible_gpus(); }};
}

absl::StatusOr<LaunchOptions> parse_launch_options(const std::vector<std::string>& args,
                                                   const LaunchHostInfo& host_info) {
  OptionDraft draft{.host_info = &host_info};
  Given given;
  GRADWIRE_RETURN_IF_ERROR(read_arguments(args, draft, given));
  if (ends_early(draft.options)) return draft.options;
  GRADWIRE_RETURN_IF_ERROR(read_environment(draft, given));
  return resolve_options(std::move(draft));
}

std::string launch_usage() {
  std::string text =
      "usage: launch [options] program args...\n\n"
      "Starts copies of a program on this machine. The environment gives each copy its rank and the address\n"
      "of the job's store (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others, as with\n"
      "torchrun). When one copy fails, the launcher ends all of them. Options may be spelled with dashes or\n"
      "underscores. PET_<OPTION> in the environment (PET_NNODES, ...) sets an option that is not "
      "given.\n\n";
  constexpr size_t kIndent = 33, kWidth = 100;
  for (const OptionRow& row : option_table()) {
    std::string spelled = row.letter == 0 ? "    " : absl::StrFormat("-%c, ", row.letter);
    absl::StrAppend(&spelled, "--", row.name);
    if (row.value == Value::kOptional) absl::StrAppend(&spelled, "[=", row.value_name, "]");
    if (row.value == Value::kWanted) absl::StrAppend(&spelled, "=", row.value_name);
    absl::StrAppend(&text, absl::StrFormat("  %-30s ", spelled));
    if (spelled.size() > 30) absl::StrAppend(&text, "\n", std::string(kIndent, ' '));
    append_wrapped(text, row.help, kIndent, kWidth);
  }
  return text;
}

}  // namespace gradwire::tools
