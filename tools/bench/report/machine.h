#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gradwire::bench {

// The properties of a machine that decide how long it takes to wake a thread. A text is "unknown" if the
// machine does not say it.
struct Machine {
  std::string processor;
  int cores = 0;
  std::string clock_source;
  std::string cpuidle_driver;
  std::string cpuidle_governor;
  // How long an idle core of a guest polls before it halts, in nanoseconds.
  std::string guest_halt_poll_ns;
  // "yes", "no" or "unknown": whether the processor reports a hypervisor.
  std::string virtual_machine;
};

// Reads the properties from the files of this machine. A test passes a `root` other than "".
Machine read_machine(const std::string& root = "");

// Returns the lines about the machine for a report.
std::vector<std::pair<std::string, std::string>> about_lines(const Machine& machine);

// Returns the first line that --json writes, without a newline:
// {"machine":{"processor":…,"cores":…,"clock_source":…,"cpuidle_driver":…,"cpuidle_governor":…,
// "guest_halt_poll_ns":…,"virtual":…}}
std::string machine_line(const Machine& machine);

}  // namespace gradwire::bench
