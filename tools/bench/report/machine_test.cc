#include "gradwire/tools/bench/report/machine.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::Contains;
using ::testing::Pair;

class MachineTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MachineTest, ReadsTheFilesOfTheKernel) {
  write("/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nflags\t\t: fpu hypervisor sse2\n\n"
        "processor\t: 1\nmodel name\t: Some CPU: 3 GHz\nflags\t\t: fpu hypervisor sse2\n");
  write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock\n");
  write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
  write("/sys/devices/system/cpu/cpuidle/current_governor_ro", "menu\n");
  write("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000\n");
  const Machine machine = read_machine(root_);
  EXPECT_GE(machine.cores, 1);
  EXPECT_THAT(about_lines(machine), Contains(Pair("cpuidle driver and governor", "haltpoll, menu")));
  EXPECT_EQ(machine_line(machine),
            R"({"machine":{"processor":"Some CPU: 3 GHz","cores":)" + std::to_string(machine.cores) +
                R"(,"clock_source":"kvm-clock","cpuidle_driver":"haltpoll","cpuidle_governor":"menu",)"
                R"("guest_halt_poll_ns":"200000","virtual":"yes"}})");
}

TEST_F(MachineTest, AMissingFileIsUnknown) {
  const Machine machine = read_machine(root_);
  for (const std::string& text :
       {machine.processor, machine.clock_source, machine.cpuidle_driver, machine.cpuidle_governor,
        machine.guest_halt_poll_ns, machine.virtual_machine}) {
    EXPECT_EQ(text, "unknown");
  }
}

TEST_F(MachineTest, WithoutTheFlagThereIsNoHypervisor) {
  write("/proc/cpuinfo", "model name\t: Some CPU\nflags\t\t: fpu hypervisors\n");
  EXPECT_EQ(read_machine(root_).virtual_machine, "no");
}

}  // namespace
}  // namespace gradwire::bench
