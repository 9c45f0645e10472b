#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// A random program of collectives and messages for the ranks of a world and of groups in it. Ranks with the
// same seed get the same program. The program is valid, so it must end. It only computes; it calls no group.
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
    // The index in `groups`.
    std::size_t group = 0;
    // The root of the operation, or the sender of the message, as a rank of the world.
    int root = 0;
    // Only for a message. The receiver is a rank of the world.
    int receiver = 0;
    int tag = 0;
    // Whether the message is received from any source.
    bool from_any = false;
    // Number of elements.
    int64_t count = 0;
  };
  struct Round {
    // Number of groups that exist in this round; all ranks make new groups before it.
    std::size_t groups = 1;
    // Whether each rank runs the steps asynchronously in its own order. Otherwise the ranks run them in the
    // given order, each step synchronously or asynchronously.
    bool shuffled = false;
    std::vector<Step> steps;
  };

  static Interleaving make(uint64_t seed, int world_size);

  bool takes_part(const Step& step, int rank) const;
  // The steps in which `rank` takes part, in its order. All ranks of a group have its collectives in the same
  // order, and both ends have messages with the same tag in the same order.
  std::vector<std::size_t> order(std::size_t round, int rank) const;
  // Whether `rank` waits for the step before it begins the next one.
  bool waits(std::size_t round, std::size_t step, int rank) const;

  uint64_t seed = 0;
  // The members of each group, as ranks of the world. The first group is the world.
  std::vector<std::vector<int>> groups;
  std::vector<Round> rounds;
};

}  // namespace gradwire::collectives
