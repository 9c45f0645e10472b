#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::simulation {

// Counts which event met which state of a simulation's machines. A simulator names them by the enumerations
// of its Coverage.
class CoverageTable {
 public:
  // At most 20 states and 40 events.
  struct MachineNames {
    const char* name;
    std::vector<const char*> states;
    std::vector<const char*> events;
  };
  // What cannot happen between honest workers, or would be no event.
  struct Impossible {
    const char* machine;
    const char* state;  // "*": any
    const char* event;  // "*": any
    const char* reason;
  };

  // What happens less than 20 times in RunOptions::kSchedules schedules: too seldom to be asked of so few.
  struct Rare {
    const char* machine;
    const char* state;
    const char* event;
  };

  CoverageTable(std::vector<MachineNames> machines, std::vector<Impossible> impossible,
                std::vector<Rare> rare)
      : machines_(std::move(machines)),
        impossible_(std::move(impossible)),
        rare_(std::move(rare)),
        counts_(machines_.size()) {}

  void hit(std::size_t machine, std::size_t state, std::size_t event) { ++counts_[machine][state][event]; }
  // A table for each machine.
  std::string print() const;
  // Pairs that met too seldom in so many schedules, and are not on the list of those that cannot. Several
  // meetings are asked of each pair, or one of a rare pair in a million schedules: this tells what the
  // scenarios bring about from what one seed happens to. Empty for fewer than RunOptions::kSchedules.
  std::vector<std::string> unreached(uint64_t schedules) const;
  // Pairs on that list that met all the same.
  std::vector<std::string> reached_impossible() const;

 private:
  static constexpr std::size_t kMostStates = 20;
  static constexpr std::size_t kMostEvents = 40;

  void for_each_pair(const std::function<void(const std::string& pair, uint64_t count, bool impossible,
                                              bool rare)>& visit) const;
  bool is_rare(const MachineNames& machine, std::size_t state, std::size_t event) const;
  bool listed(const MachineNames& machine, std::size_t state, std::size_t event) const;

  const std::vector<MachineNames> machines_;
  const std::vector<Impossible> impossible_;
  const std::vector<Rare> rare_;
  std::vector<std::array<std::array<uint64_t, kMostEvents>, kMostStates>> counts_;
};

}  // namespace gradwire::simulation
