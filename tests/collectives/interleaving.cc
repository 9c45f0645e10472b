#include "gradwire/tests/collectives/interleaving.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

namespace gradwire::collectives {
namespace {

using Kind = Interleaving::Kind;
using Random = std::mt19937_64;

constexpr int kRounds = 6;
constexpr int kStepsPerRound = 30;
// Each message from any source has its own tag, from this number on.
constexpr int kFirstOwnTag = 100;

// std::uniform_int_distribution is not used, because its numbers differ between standard libraries.
std::size_t below(Random& random, std::size_t bound) { return random() % bound; }

std::vector<int> random_members(Random& random, int world_size) {
  std::vector<int> members;
  while (members.empty()) {
    for (int rank = 0; rank < world_size; ++rank) {
      if (below(random, 3) != 0) members.push_back(rank);
    }
  }
  return members;
}

Interleaving::Step random_step(Random& random, const Interleaving& program, std::size_t groups, int number) {
  constexpr int64_t kCounts[] = {0, 1, 7, 300, 5000, 50001};
  Interleaving::Step step;
  step.group = below(random, groups);
  const std::vector<int>& members = program.groups[step.group];
  step.count = kCounts[below(random, std::size(kCounts))];
  step.root = members[below(random, members.size())];
  const std::size_t kinds = static_cast<std::size_t>(Kind::kMessage);
  // One third of the steps are messages.
  step.kind = static_cast<Kind>(below(random, kinds + kinds / 2));
  if (step.kind < Kind::kMessage) return step;
  step.kind = Kind::kMessage;
  step.receiver = members[below(random, members.size())];
  // A rank that waits for each step could not wait for a message to itself.
  if (step.receiver == step.root) step.kind = Kind::kBarrier;
  step.from_any = below(random, 4) == 0;
  step.tag = step.from_any ? kFirstOwnTag + number : static_cast<int>(below(random, 2));
  return step;
}

}  // namespace

Interleaving Interleaving::make(uint64_t seed, int world_size) {
  Random random(seed);
  Interleaving program;
  program.seed = seed;
  program.groups.emplace_back(static_cast<std::size_t>(world_size));
  std::iota(program.groups[0].begin(), program.groups[0].end(), 0);
  for (int i = 0; i < kRounds; ++i) {
    for (std::size_t more = below(random, 3) + (i == 0 ? 2 : 0); more > 0; --more) {
      program.groups.push_back(random_members(random, world_size));
    }
    Round round{.groups = program.groups.size(), .shuffled = i % 2 == 1};
    for (int step = 0; step < kStepsPerRound; ++step) {
      round.steps.push_back(random_step(random, program, round.groups, i * kStepsPerRound + step));
    }
    program.rounds.push_back(std::move(round));
  }
  return program;
}

bool Interleaving::takes_part(const Step& step, int rank) const {
  if (step.kind == Kind::kMessage) return rank == step.root || rank == step.receiver;
  const std::vector<int>& members = groups[step.group];
  return std::find(members.begin(), members.end(), rank) != members.end();
}

std::vector<std::size_t> Interleaving::order(std::size_t round, int rank) const {
  // The steps that must stay in order are in one queue: the collectives of a group, and the messages of a
  // group with the same sender, receiver and tag.
  std::map<std::tuple<std::size_t, int, int, int>, std::deque<std::size_t>> queues;
  std::vector<std::size_t> given;
  const std::vector<Step>& steps = rounds[round].steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (!takes_part(step, rank)) continue;
    given.push_back(i);
    const bool message = step.kind == Kind::kMessage;
    queues[{step.group, message ? step.root : -1, message ? step.receiver : -1, message ? step.tag : -1}]
        .push_back(i);
  }
  if (!rounds[round].shuffled) return given;
  Random random(seed + 1000 * round + static_cast<uint64_t>(rank) + 1);
  std::vector<std::size_t> own;
  while (!queues.empty()) {
    const auto queue = std::next(queues.begin(), static_cast<std::ptrdiff_t>(below(random, queues.size())));
    own.push_back(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) queues.erase(queue);
  }
  return own;
}

bool Interleaving::waits(std::size_t round, std::size_t step, int rank) const {
  if (rounds[round].shuffled) return false;
  Random random(seed ^ (round << 40) ^ (step << 20) ^ static_cast<uint64_t>(rank));
  return below(random, 2) == 0;
}

}  // namespace gradwire::collectives
