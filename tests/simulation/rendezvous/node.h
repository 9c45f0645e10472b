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

// A call on the store.
struct Call {
  enum class Kind : uint8_t { kGet, kWatch, kBeat, kLook, kChange };
  Kind kind = Kind::kGet;
  int node = 0;
  // kWatch: until when it waits.
  Time until = 0;
  rendezvous::Rendezvous::Wanted::Beat beat;
  std::vector<std::string> ids;
  rendezvous::Rendezvous::Wanted::Change change;
  // kWatch: the record that is known, by the store's count of changes.
  uint64_t known = 0;

  std::optional<std::string> answer;
  // Of the record in `answer`.
  uint64_t revision = 0;
  std::vector<std::optional<std::string>> beats;
};

inline constexpr uint32_t kNoCall = ~uint32_t{0};

// One start of a launcher: the state machine, and around it what its driver and the launcher do in
// production.
struct SimNode {
  int index = 0;
  int launcher = 0;  // of the scenario
  std::unique_ptr<rendezvous::Rendezvous> machine;
  bool alive = true;
  // The driver has stopped.
  bool finished = false;
  Time paused_until = 0;
  Time cut_until = 0;
  // Its clock: offset + rate * time.
  absl::Time offset;
  double rate = 1;

  // The driver.
  uint32_t call = kNoCall;
  bool known = false;
  bool reached_ever = false;
  std::optional<Time> failing_since;
  uint64_t revision = 0;
  std::deque<std::function<void(rendezvous::Rendezvous&, absl::Time)>> said;

  // The launcher.
  rendezvous::RendezvousUpdate::Kind told = rendezvous::RendezvousUpdate::Kind::kWait;
  int64_t told_round = -1;
  std::optional<int64_t> workers;
  bool work_is_done = false;
  bool stopping = false;
  int64_t last_round = -1;
  int64_t serving = -1;

  std::string name() const { return "n" + std::to_string(index); }
  bool live() const { return alive && !finished; }
};

}  // namespace gradwire::rendezvous_simulation
