#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// A random program for the ranks of a world and of groups in it: the same for all ranks of one seed, and
// legal, so that it must end. Pure.
struct Interleaving {
  enum class Kind {
    kAllReduce,
    kReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBarrier,
    kMessage
  };
  struct Step {
    Kind kind = Kind::kBarrier;
    // Of `groups`.
    std::size_t group = 0;
    // A rank of the world: of a rooted operation, or of a message's sender.
    int root = 0;
    // Of a message.
    int receiver = 0;
    int tag = 0;
    bool from_any = false;
    // Of elements.
    int64_t count = 0;
  };
  struct Round {
    // Made by all ranks before the round: groups[0 .. groups) exist in it.
    std::size_t groups = 1;
    // Every rank takes the steps asynchronously in an order of its own; else in the order given, each
    // synchronously or not.
    bool shuffled = false;
    std::vector<Step> steps;
  };

  static Interleaving make(uint64_t seed, int world_size);

  bool takes_part(const Step& step, int rank) const;
  // The steps that `rank` takes part in, in its order: that of collectives is the same on all ranks of a
  // group, and that of messages with one tag on both sides.
  std::vector<std::size_t> order(std::size_t round, int rank) const;
  // Whether `rank` waits for the step before it takes the next.
  bool waits(std::size_t round, std::size_t step, int rank) const;

  uint64_t seed = 0;
  // Members by rank of the world; the first is the world.
  std::vector<std::vector<int>> groups;
  std::vector<Round> rounds;
};

}  // namespace gradwire::collectives
