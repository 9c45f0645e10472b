#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/tools/launch/rendezvous/record.h"
#include "gtest/gtest.h"

namespace gradwire::rendezvous {
namespace {

// Mostly a valid number, sometimes one near a bound.
int number(std::mt19937& random) {
  const int odd[] = {-1, 0, 255, 256, 4096, 4097, 65'535, 65'536, 1 << 20, 1 << 30};
  return random() % 8 == 0 ? odd[random() % 10] : 1 + static_cast<int>(random() % 3);
}

Member random_member(std::mt19937& random, const Record& record) {
  Member member{.id = std::string(1 + random() % 2, static_cast<char>('a' + random() % 20)),
                .node = {.host = "host", .address = "10.0.0.1"},
                .ready = random() % 8 != 0,
                .done = random() % 8 == 0};
  for (std::size_t roles = random() % 3; roles > 0; --roles)
    member.node.roles.push_back({"role", number(random)});
  if (record.settings.fixed_ranks) member.rank = static_cast<int>(random() % 4);
  return member;
}

Record random_record(std::mt19937& random) {
  Record record{.origin = "origin",
                .version = random() % 20,
                .run_id = random() % 8 == 0 ? ".." : "job",
                .settings = {.min_nodes = 1,
                             .max_nodes = 1 + static_cast<int>(random() % 4),
                             .max_restarts = number(random),
                             .fixed_ranks = random() % 2 == 0},
                .phase = static_cast<Phase>(1 + random() % 3),
                .round = number(random),
                .restarts_used = random() % 4 == 0 ? number(random) : 0,
                .call_off = number(random)};
  for (std::size_t members = random() % 3; members > 0; --members)
    record.participants.push_back(random_member(random, record));
  for (std::size_t members = random() % 2; members > 0; --members)
    record.waiting.push_back(random_member(random, record));
  if (random() % 4 == 0) record.store = Address{"host", number(random)};
  if (random() % 3 == 0) record.failure = Failure{.host = "host", .exit_code = 1, .message = "two\nlines"};
  record.succeeded = random() % 4 == 0;
  return record;
}

TEST(RendezvousFuzzer, SeededMutationsMatchTheFormat) {
  int valid = 0;
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = encode(random_record(random));
    if (random() % 2 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
    if (decode(bytes).ok()) ++valid;
  }
  // Both valid and invalid records occur.
  EXPECT_GT(valid, 500);
  EXPECT_LT(valid, 19'500);
}

}  // namespace
}  // namespace gradwire::rendezvous
