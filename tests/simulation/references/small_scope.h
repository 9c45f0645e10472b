#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/network.h"

namespace gradwire::references_simulation {

// A state of a very small group: three workers, one RRef of the first worker, a few forks, and at most one
// fault. The group is so small that a test can try every order of events. A state offers its moves; a test
// visits all states by applying each move to a copy of the state, recursively.
//
// Any packet in flight may arrive next, so messages arrive in any order. There is no log: the workers learn
// of a death in any order, because its consequences (lose, then fence) are moves of each worker.
class SmallScope {
 public:
  static constexpr int kWorkers = 3;

  enum class Fault : uint8_t { kNone, kLoss, kDuplicate, kCrash, kBrokenLink, kGiveUp };

  // If `by_request`, the second worker requests the creation of the RRef, which makes a fork. Else the owner
  // has the RRef from the start. At most `forks` forks are made.
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
    // An index of a packet, a handle or a worker, depending on `kind`.
    int a = 0;
    int b = 0;
  };
  // Returns all events that are possible in this state.
  std::vector<Move> moves() const;
  // Changes the state. Returns the violated invariant; empty if none.
  std::string apply(const Move& move);
  // Checks, in a state without moves, that all tables are empty. Returns the violated invariant; empty if
  // none.
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
  // The packets in flight, in the order in which they were sent.
  std::vector<Packet> packets_;
  std::array<bool, kWorkers> alive_{true, true, true};
  // By worker and dead worker, what the first knows of the second's death: 0 nothing, 1 lost, 2 fenced.
  std::array<std::array<uint8_t, kWorkers>, kWorkers> knows_{};
  // By two workers: their connection broke, and the first has not restored it yet.
  std::array<std::array<bool, kWorkers>, kWorkers> restore_{};
  // Lost packets that are to be sent again.
  std::vector<Packet> repeat_;
  // The fork of the creation that its caller may give up; empty if none.
  rpc::Id give_up_;
  uint64_t ids_ = 1;
  int forks_left_ = 0;
  // The fault that may still happen.
  Fault fault_ = Fault::kNone;
  bool value_ = false;
  bool freed_ = false;
  std::string violation_;
};

}  // namespace gradwire::references_simulation
