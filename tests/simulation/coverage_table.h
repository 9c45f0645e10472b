#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradwire::simulation {

// Which event met which state of a simulation's machines. A simulation's own class of this kind names them by enumerations.
class CoverageTable {
 public:
  // At most 20 states and 20 events.
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

  void hit(std::size_t machine, std::size_t state, std::size_t event) { ++counts_[machine][state][event]; }
  // A table for each machine.
  std::string print() const;
  // Pairs that never met, and are not on the list of those that cannot.
  std::vector<std::string> unreached() const;
  // Pairs on that list that met all the same.
  std::vector<std::string> reached_impossible() const;

 protected:
  CoverageTable(std::vector<MachineNames> machines, std::vector<Impossible> impossible)
      : machines_(std::move(machines)), impossible_(std::move(impossible)), counts_(machines_.size()) {}

 private:
  static constexpr std::size_t kMost = 20;

  bool listed(const MachineNames& machine, std::size_t state, std::size_t event) const;
  std::vector<std::string> pairs(bool met, bool listed) const;

  const std::vector<MachineNames> machines_;
  const std::vector<Impossible> impossible_;
  std::vector<std::array<std::array<uint64_t, kMost>, kMost>> counts_;
};

}  // namespace gradwire::simulation
