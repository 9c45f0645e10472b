#include "gradwire/tools/bench/report/machine.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::bench {
namespace {

constexpr char kUnknown[] = "unknown";

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  line = std::string(absl::StripAsciiWhitespace(line));
  return line.empty() ? kUnknown : line;
}

void read_cpuinfo(const std::string& path, Machine& machine) {
  std::ifstream info(path);
  for (std::string line; std::getline(info, line);) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(field.first);
    if (name == "model name") machine.processor = std::string(absl::StripAsciiWhitespace(field.second));
    if (name != "flags") continue;
    machine.virtual_machine = "no";
    for (const absl::string_view flag : absl::StrSplit(field.second, ' ')) {
      if (flag == "hypervisor") machine.virtual_machine = "yes";
    }
  }
}

}  // namespace

Machine read_machine(const std::string& root) {
  const std::string system = root + "/sys/devices/system/";
  Machine machine{
      .processor = kUnknown,
      .cores = static_cast<int>(std::thread::hardware_concurrency()),
      .clock_source = first_line(system + "clocksource/clocksource0/current_clocksource"),
      .cpuidle_driver = first_line(system + "cpu/cpuidle/current_driver"),
      .cpuidle_governor = first_line(system + "cpu/cpuidle/current_governor"),
      .guest_halt_poll_ns = first_line(root + "/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
      .virtual_machine = kUnknown};
  // Some kernels have only the file that cannot be written.
  if (machine.cpuidle_governor == kUnknown) {
    machine.cpuidle_governor = first_line(system + "cpu/cpuidle/current_governor_ro");
  }
  read_cpuinfo(root + "/proc/cpuinfo", machine);
  return machine;
}

std::vector<std::pair<std::string, std::string>> about_lines(const Machine& machine) {
  return {
      {"machine", absl::StrCat(machine.processor, ", ", machine.cores, " cores")},
      {"virtual machine", machine.virtual_machine},
      {"clock source", machine.clock_source},
      {"cpuidle driver and governor", absl::StrCat(machine.cpuidle_driver, ", ", machine.cpuidle_governor)},
      {"guest_halt_poll_ns", machine.guest_halt_poll_ns}};
}

std::string machine_line(const Machine& machine) {
  nlohmann::ordered_json fields;
  fields["processor"] = machine.processor;
  fields["cores"] = machine.cores;
  fields["clock_source"] = machine.clock_source;
  fields["cpuidle_driver"] = machine.cpuidle_driver;
  fields["cpuidle_governor"] = machine.cpuidle_governor;
  fields["guest_halt_poll_ns"] = machine.guest_halt_poll_ns;
  fields["virtual"] = machine.virtual_machine;
  nlohmann::ordered_json line;
  line["machine"] = std::move(fields);
  return line.dump();
}

}  // namespace gradwire::bench
