#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// Workers of one schedule, over all their incarnations.
inline constexpr int kMaxWorkers = 12;
// In the place of a worker in a cut.
inline constexpr int kStore = kMaxWorkers;
inline constexpr int kAll = kMaxWorkers + 1;

// What one worker sends to another.
struct Packet {
  enum class Kind : uint8_t { kMessage, kAnswer, kShare, kCreate, kCreated };
  Kind kind = Kind::kMessage;
  int from = 0;
  int to = 0;
  bool in_flight = false;
  // By when it was sent; a duplicate has the number of the first.
  uint64_t sequence = 0;
  // kMessage; of kAnswer the message that is answered.
  rpc::ReferenceMessage message;
  rpc::ReferenceMessage::Answer answer = rpc::ReferenceMessage::Answer::kDone;
  // kShare; of kCreate and kCreated the RRef and the fork (child).
  rpc::References::Reference reference;
  // kShare to the owner without a fork of its own: the handle that is kept meanwhile.
  uint64_t kept_handle = 0;
};

// The packets under way, who is connected with whom, and who cannot reach whom.
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
  // It has arrived, or is lost.
  Packet take(uint32_t index) {
    Packet packet = std::move(packets_[index]);
    packets_[index].in_flight = false;
    free_.push_back(index);
    std::erase(under_way_[packet.from][packet.to], index);
    return packet;
  }
  // Nothing that was sent before this packet on the same way is still under way.
  bool first(const Packet& packet) const {
    for (uint32_t index : under_way_[packet.from][packet.to]) {
      if (packets_[index].sequence < packet.sequence) return false;
    }
    return true;
  }
  bool idle(int from, int to) const { return under_way_[from][to].empty(); }
  // All, also those that have arrived.
  const std::vector<Packet>& packets() const { return packets_; }

  void cut(int a, int b, Time until, Time duration) {
    cut_[a][b] = cut_[b][a] = std::max(cut_[a][b], until);
    cut_for_[a][b] = cut_for_[b][a] = cut_for_[a][b] + duration;
  }
  // How long all cuts lasted.
  Time cut_for(int a, int b) const { return cut_for_[a][b]; }
  Time cut_until(int a, int b) const { return cut_[a][b]; }
  void heal() { cut_ = {}; }

  bool linked(int a, int b) const { return linked_[a][b]; }
  void link(int a, int b, bool linked) { linked_[a][b] = linked_[b][a] = linked; }
  // There was a connection before.
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
