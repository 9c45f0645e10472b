#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/network.h"

namespace gradwire::references_simulation {

// A group of three workers and one RRef of the first, of which at most a few forks are made, with at most one
// fault: so small that everything that can happen can be tried. A state offers its moves; applying each of
// them to a copy, and so on, visits all states.
//
// Anything under way may arrive next, so messages take any order. What the members know of deaths comes in
// any order too, without a log: its consequences (lose, then fence) are moves of each worker.
class SmallScope {
 public:
  static constexpr int kWorkers = 3;

  enum class Fault : uint8_t { kNone, kLoss, kDuplicate, kCrash, kBrokenLink, kGiveUp };

  // `by_request`: the second worker asks for the RRef, which makes a fork; else its owner just has it.
  SmallScope(bool by_request, int forks, Fault fault);

  struct Move {
    enum class Kind : uint8_t {
      kDeliver,
      kDrop,
      kDuplicate,
      kCrash,
      kBreak,
      kRestore,
      kGiveUp,
      kRepeat,
      kLose,
      kFence,
      kShare,
      kRelease,
      kSettle
    };
    Kind kind;
    // An index of a packet, a handle or a worker.
    int a = 0;
    int b = 0;
  };
  std::vector<Move> moves() const;
  // Empty, or the violated invariant.
  std::string apply(const Move& move);
  // Of a state without moves: everything is gone.
  std::string check_end() const;
  std::string describe(const Move& move) const;

  template <class H>
  friend H AbslHashValue(H hash, const SmallScope& scope) {
    for (const rpc::References& references : scope.references_)
      hash = H::combine(std::move(hash), references);
    for (const Held& held : scope.handles_)
      hash = H::combine(std::move(hash), held.worker, held.fork, held.failed);
    for (const Packet& packet : scope.packets_) {
      hash = H::combine(std::move(hash), packet.kind, packet.from, packet.to, packet.message, packet.answer,
                        packet.reference.child, packet.reference.registered);
    }
    return H::combine(std::move(hash), scope.alive_, scope.knows_, scope.restore_, scope.repeat_.size(),
                      scope.give_up_, scope.forks_left_, scope.fault_, scope.value_, scope.freed_);
  }

 private:
  struct Held {
    int worker = 0;
    rpc::Id fork;
    bool failed = false;
  };
  using Actions = rpc::References::Actions;
  static constexpr rpc::Id kRRef{1, 1};
  static constexpr uint64_t incarnation(int worker) { return worker + 1; }

  void deliver(Packet packet, bool settled);
  void lost(const Packet& packet);
  void lose(int worker, int dead);
  void process(int worker, Actions& actions);
  void send(Packet packet);
  void check_freed();

  std::array<rpc::References, kWorkers> references_;
  std::vector<Held> handles_;
  // In the order in which they were sent.
  std::vector<Packet> packets_;
  std::array<bool, kWorkers> alive_{true, true, true};
  // Of a dead worker: 0 nothing, 1 lost, 2 fenced.
  std::array<std::array<uint8_t, kWorkers>, kWorkers> knows_{};
  // A connection broke, and is made again.
  std::array<std::array<bool, kWorkers>, kWorkers> restore_{};
  // What was lost, to be sent again.
  std::vector<Packet> repeat_;
  // The creation that its caller may give up.
  rpc::Id give_up_;
  uint64_t ids_ = 1;
  int forks_left_ = 0;
  // Still to come.
  Fault fault_ = Fault::kNone;
  bool value_ = false;
  bool freed_ = false;
  std::string violation_;
};

}  // namespace gradwire::references_simulation
