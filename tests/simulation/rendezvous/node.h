#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tests/simulation/rendezvous/scheduler.h"
#include "gradwire/tools/launch/rendezvous/rendezvous.h"

namespace gradwire::rendezvous_simulation {

// A call of a node on the store.
struct Call {
  enum class Kind : uint8_t { kGet, kWatch, kBeat, kReadBeats, kChange };
  Kind kind = Kind::kGet;
  int node = 0;
  // For kWatch: the end of the wait.
  Time until = 0;
  rendezvous::Rendezvous::Wanted::Beat beat;
  std::vector<std::string> ids;
  rendezvous::Rendezvous::Wanted::Change change;
  // For kWatch: the revision of the record that the node knows.
  uint64_t known = 0;

  std::optional<std::string> answer;
  // The revision of the record in `answer`.
  uint64_t revision = 0;
  std::vector<std::optional<std::string>> beats;
};

inline constexpr uint32_t kNoCall = ~uint32_t{0};

// One start of a launcher: the state machine, and the simulated parts of its driver and of the launcher.
struct SimNode {
  int index = 0;
  int launcher = 0;  // Index in the scenario.
  std::unique_ptr<rendezvous::Rendezvous> machine;
  bool alive = true;
  // Whether the driver has stopped.
  bool finished = false;
  Time paused_until = 0;
  Time cut_until = 0;
  // The node's clock is offset + rate * time.
  absl::Time offset;
  double rate = 1;

  // State of the driver.
  uint32_t call = kNoCall;
  bool known = false;
  bool reached_ever = false;
  std::optional<Time> failing_since;
  uint64_t revision = 0;
  std::deque<std::function<void(rendezvous::Rendezvous&, absl::Time)>> reports;

  // State of the launcher.
  rendezvous::RendezvousUpdate::Kind last_kind = rendezvous::RendezvousUpdate::Kind::kWait;
  int64_t last_kind_round = -1;
  std::optional<int64_t> workers;
  bool work_is_done = false;
  bool stopping = false;
  int64_t last_round = -1;
  int64_t serving = -1;

  std::string name() const { return "n" + std::to_string(index); }
  bool live() const { return alive && !finished; }
};

}  // namespace gradwire::rendezvous_simulation
