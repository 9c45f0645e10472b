#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::simulation {

// Counts, for each state machine of a simulation, how often each event occurred in each state. A simulator
// addresses machines, states and events by the values of the enumerations in its struct Coverage.
class CoverageTable {
 public:
  // The names of one machine's states and events: at most 20 states and 40 events.
  struct MachineNames {
    const char* name;
    std::vector<const char*> states;
    std::vector<const char*> events;
  };
  // A pair of a state and an event that cannot occur between correct workers.
  struct Impossible {
    const char* machine;
    const char* state;  // "*" matches any state.
    const char* event;  // "*" matches any event.
    const char* reason;
  };

  // A pair that occurs less than 20 times in RunOptions::kSchedules schedules. A run of that length might
  // miss it by chance, so only longer runs require it.
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
  // Returns a printable table for each machine: one row for each event, one column for each state.
  std::string print() const;
  // Returns the pairs that are not listed as impossible and were counted too seldom in `schedules` schedules.
  // Each pair must be counted several times, so that the scenarios, not a lucky seed, cause it. A rare pair
  // must be counted once in a million schedules. Empty if `schedules` is less than RunOptions::kSchedules.
  std::vector<std::string> unreached(uint64_t schedules) const;
  // Returns the pairs that are listed as impossible but were counted.
  std::vector<std::string> reached_impossible() const;

 private:
  static constexpr std::size_t kMaxStates = 20;
  static constexpr std::size_t kMaxEvents = 40;

  void for_each_pair(const std::function<void(const std::string& pair, uint64_t count, bool impossible,
                                              bool rare)>& visit) const;
  bool is_rare(const MachineNames& machine, std::size_t state, std::size_t event) const;
  bool listed(const MachineNames& machine, std::size_t state, std::size_t event) const;

  const std::vector<MachineNames> machines_;
  const std::vector<Impossible> impossible_;
  const std::vector<Rare> rare_;
  std::vector<std::array<std::array<uint64_t, kMaxEvents>, kMaxStates>> counts_;
};

}  // namespace gradwire::simulation
