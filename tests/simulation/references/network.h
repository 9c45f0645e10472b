#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// Maximum number of workers in one schedule, counting each incarnation.
inline constexpr int kMaxWorkers = 12;
// Used instead of a worker's index in a cut: the store, and all other nodes.
inline constexpr int kStore = kMaxWorkers;
inline constexpr int kAll = kMaxWorkers + 1;

// A message from one worker to another.
struct Packet {
  enum class Kind : uint8_t { kMessage, kAnswer, kShare, kCreate, kCreated };
  Kind kind = Kind::kMessage;
  int from = 0;
  int to = 0;
  bool in_flight = false;
  // Sequence number in the order of sending. A duplicate has the number of the original.
  uint64_t sequence = 0;
  // kMessage: the message. kAnswer: the message that is answered.
  rpc::ReferenceMessage message;
  rpc::ReferenceMessage::Answer answer = rpc::ReferenceMessage::Answer::kDone;
  // kShare: the shared reference. kCreate and kCreated: the RRef, and the fork in `child`.
  rpc::References::Reference reference;
  // kShare to the owner without a new fork: the number of the handle that the sender keeps until the call
  // ends.
  uint64_t kept_handle = 0;
};

// The simulated network: the packets in flight, the connections, and the cuts between nodes.
class Network {
 public:
  uint32_t add(Packet packet) {
    packet.in_flight = true;
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(packets_.size());
      packets_.push_back(std::move(packet));
    } else {
      index = free_.back();
      free_.pop_back();
      packets_[index] = std::move(packet);
    }
    under_way_[packets_[index].from][packets_[index].to].push_back(index);
    return index;
  }
  uint64_t next_sequence() { return ++sequence_; }
  const Packet& at(uint32_t index) const { return packets_[index]; }
  // Removes a packet that arrives or is lost.
  Packet take(uint32_t index) {
    Packet packet = std::move(packets_[index]);
    packets_[index].in_flight = false;
    free_.push_back(index);
    std::erase(under_way_[packet.from][packet.to], index);
    return packet;
  }
  // Returns whether no earlier packet from the same sender to the same receiver is in flight.
  bool first(const Packet& packet) const {
    for (uint32_t index : under_way_[packet.from][packet.to]) {
      if (packets_[index].sequence < packet.sequence) return false;
    }
    return true;
  }
  bool idle(int from, int to) const { return under_way_[from][to].empty(); }
  // All packets, including those that have arrived.
  const std::vector<Packet>& packets() const { return packets_; }

  void cut(int a, int b, Time until, Time duration) {
    cut_[a][b] = cut_[b][a] = std::max(cut_[a][b], until);
    cut_for_[a][b] = cut_for_[b][a] = cut_for_[a][b] + duration;
  }
  // Total duration of all cuts between the two.
  Time cut_for(int a, int b) const { return cut_for_[a][b]; }
  Time cut_until(int a, int b) const { return cut_[a][b]; }
  void heal() { cut_ = {}; }

  bool linked(int a, int b) const { return linked_[a][b]; }
  void link(int a, int b, bool linked) { linked_[a][b] = linked_[b][a] = linked; }
  // Whether the two had a connection that broke.
  bool broken(int a, int b) const { return broken_[a][b]; }
  void set_broken(int a, int b, bool broken) { broken_[a][b] = broken_[b][a] = broken; }

 private:
  template <class T>
  using Pairs = std::array<std::array<T, kMaxWorkers + 1>, kMaxWorkers + 1>;

  std::vector<Packet> packets_;
  std::vector<uint32_t> free_;
  Pairs<std::vector<uint32_t>> under_way_;
  uint64_t sequence_ = 0;
  Pairs<Time> cut_{};
  Pairs<Time> cut_for_{};
  Pairs<bool> linked_{};
  Pairs<bool> broken_{};
};

}  // namespace gradwire::references_simulation
