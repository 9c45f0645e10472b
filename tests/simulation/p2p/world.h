#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/harness/trace.h"
#include "gradwire/tests/simulation/p2p/coverage.h"
#include "gradwire/tests/simulation/p2p/oracle.h"

namespace gradwire::p2p_simulation {

using collectives::cpu::Effect;
using collectives::cpu::Effects;
using collectives::cpu::Endpoint;
using collectives::cpu::Frame;
using collectives::cpu::FrameKind;
using collectives::cpu::Payload;
using collectives::cpu::SendTable;

// Two to four ranks in one schedule. Each has a production Endpoint. Its surroundings in production
// (WorldP2pCore with its connections, or ShmEndpoint with its rings) are simulated in the same steps, one at
// a time and in any order.
class World {
 public:
  World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace);

  // Runs the schedule. Returns the first violation of an invariant, or an empty string.
  const std::string& run();
  uint64_t steps() const { return steps_; }

 private:
  using Event = Coverage::Event;

  // The bytes of a message in transit: read from the sender's memory when the receiver receives them, or
  // before.
  struct Body {
    int operation;
    bool ready = false;
    std::string bytes;
  };
  struct Item {
    Frame frame;
    std::shared_ptr<Body> body;
  };
  // A message that the carrier has taken and not completed.
  struct Carried {
    int operation;
    FrameKind kind;
    std::shared_ptr<Body> body;  // Rings: null before the last piece.
    bool fails = false;
    bool blocks = true;  // The carrier takes nothing else meanwhile.
  };
  // The state between one rank and another, in one direction.
  struct Link {
    std::deque<Item> frames, answers;
    std::vector<Carried> carried;
    bool woken = false;
    bool broken = false;
    bool lost = false;         // The first rank has lost the second.
    uint64_t outstanding = 0;  // Bytes taken from the window.
  };
  // Rings: a partly received message.
  struct Stream {
    int operation;
    bool has_receive = false;
    bool unwanted = false;
  };
  struct Rank {
    std::unique_ptr<Endpoint> endpoint;
    std::unique_ptr<Oracle> oracle;
    std::map<std::pair<int, uint64_t>, Stream> streams;
    bool closed = false;
  };

  // world.cc: the actions of users.
  void step();
  Operation& add(int rank, int peer);
  void send(int rank);
  void receive(int rank);
  void cancel(Operation& operation);
  void pass_time(int rank);
  void end_channel(int rank, uint64_t channel, bool forget);
  void close(int rank);
  void deliver_all();
  void finish();

  // carrier.cc
  bool take(int from, int to);
  void enqueue(int from, int to, Item item, bool answer);
  // Completes a message that the carrier has taken. Returns false if it must wait.
  bool complete(int from, int to, std::size_t which);
  void retract(int from, const Operation& send);
  bool deliver(int from, int to, bool answer);
  absl::Status arrive(int from, int to, Item& item, Effects& effects);
  absl::Status end_stream(int from, int to, const Frame& frame, const Body& body, Effects& effects);
  void read(Body& body);
  void fail_sends(int rank, int other);
  void lose(int rank, int other);
  void reply(int rank, int to, const Frame& frame);
  // Performs the effects of one event.
  void act(int rank, absl::FunctionRef<void(Endpoint&, Effects&)> event);
  void perform(int rank, Effect& effect);

  // invariants.cc
  void end(Operation& operation, const absl::Status& status);
  bool justified(const Operation& operation, absl::StatusCode code) const;
  // Number of announced messages to the rank that were neither answered nor cancelled.
  int pending_rts(int from, int to) const;
  void check_quiescent();
  void check_room(int rank);
  void check_end();
  void violate(std::string what);

  Operation* find_send(int rank, uint64_t id);
  Operation& operation_of(const void* operation) { return operations_[numbers_.at(operation)]; }
  Link& link(int from, int to) { return links_[from * size_ + to]; }
  const Link& link(int from, int to) const { return links_[from * size_ + to]; }
  Oracle& oracle(int rank) { return *ranks_[rank].oracle; }
  const Oracle& oracle(int rank) const { return *ranks_[rank].oracle; }
  bool all_others_lost(int rank) const;
  static std::string contents(const Operation& send);
  std::string name(const Operation& operation) const;
  void cover(const Operation& operation, Event event);
  void cover_each(Event event, absl::FunctionRef<bool(const Operation&)> chosen);
  template <class... Args>
  void trace(const Args&... args) {
    if (trace_ != nullptr) trace_->line(static_cast<simulation::Time>(steps_) * 1000, args...);
  }

  simulation::Random random_;
  simulation::CoverageTable* const coverage_;
  simulation::Trace* const trace_;
  const int size_;
  const bool rings_;
  const std::size_t max_pending_rts_;
  const uint64_t window_;
  const uint32_t faults_;  // Number of faults in 1000 steps.
  std::vector<Rank> ranks_;
  std::vector<Link> links_;
  std::deque<Operation> operations_;
  absl::flat_hash_map<const void*, int> numbers_;
  int64_t now_ = 0;
  uint64_t steps_ = 0;
  std::string violation_;
};

}  // namespace gradwire::p2p_simulation
