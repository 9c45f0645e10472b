#include "gradwire/tools/launch/rendezvous/record.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "gradwire/proto/rendezvous.pb.h"

namespace gradwire::rendezvous {
namespace {

Member member(const std::string& id) {
  return {.id = id,
          .node = {.host = "host " + id, .address = "10.0.0.1", .roles = {{"ps", 1}, {"trainer", 4}}},
          .ready = true};
}

Record running() {
  return {.origin = "a",
          .version = 7,
          .run_id = "job",
          .settings = {.min_nodes = 1, .max_nodes = 2, .max_restarts = 3},
          .phase = Phase::kRunning,
          .round = 2,
          .restarts_used = 1,
          .participants = {member("a"), member("b")},
          .waiting = {member("c")},
          .store = Address{"a.example", 4242},
          .failure = Failure{.host = "b",
                             .rank = 3,
                             .role = "trainer",
                             .local_rank = 1,
                             .pid = 99,
                             .exit_code = 1,
                             .time = absl::FromUnixMicros(1234567),
                             .message = "two\nlines"}};
}

TEST(RendezvousRecord, SurvivesEncodingAndDecoding) {
  const Record record = running();
  const absl::StatusOr<Record> back = decode(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, record);
}

TEST(RendezvousRecord, HostileRecordsAreRefused) {
  const std::pair<const char*, std::function<void(proto::RendezvousState&)>> cases[] = {
      {"no origin", [](auto& state) { state.clear_origin(); }},
      {"no version", [](auto& state) { state.clear_version(); }},
      {"no phase", [](auto& state) { state.clear_phase(); }},
      {"unknown phase", [](auto& state) { state.set_phase(static_cast<proto::RendezvousState::Phase>(9)); }},
      {"round", [](auto& state) { state.set_round(-1); }},
      {"last round", [](auto& state) { state.set_round(INT64_MAX); }},
      {"min", [](auto& state) { state.mutable_settings()->set_min_nodes(0); }},
      {"max", [](auto& state) { state.mutable_settings()->set_max_nodes(kMaxNodes + 1); }},
      {"min above max", [](auto& state) { state.mutable_settings()->set_min_nodes(3); }},
      {"restarts", [](auto& state) { state.set_restarts_used(4); }},
      {"call_off", [](auto& state) { state.set_call_off(-1); }},
      {"an id that is a path", [](auto& state) { state.set_run_id("../elsewhere"); }},
      {"a signal that makes 256 of 128", [](auto& state) { state.mutable_failure()->set_signal(128); }},
      {"too many",
       [](auto& state) {
         *state.add_participants() = state.waiting(0);
         state.clear_waiting();
       }},
      {"too few", [](auto& state) { state.clear_participants(); }},
      {"too many waiting",
       [](auto& state) {
         for (int i = 0; i < kMaxNodes; ++i) {
           proto::RendezvousNode node = state.waiting(0);
           node.set_id(std::to_string(i));
           *state.add_waiting() = node;
         }
       }},
      {"twice", [](auto& state) { state.mutable_waiting(0)->set_id("a"); }},
      {"no id", [](auto& state) { state.mutable_waiting(0)->clear_id(); }},
      {"long id", [](auto& state) { state.mutable_waiting(0)->set_id(std::string(kMaxName + 1, 'x')); }},
      {"long host",
       [](auto& state) { state.mutable_participants(0)->set_host(std::string(kMaxName + 1, 'x')); }},
      {"rank without fixed ranks", [](auto& state) { state.mutable_participants(0)->set_rank(0); }},
      {"fixed ranks without rank", [](auto& state) { state.mutable_settings()->set_fixed_ranks(true); }},
      {"no workers", [](auto& state) { state.mutable_participants(0)->mutable_roles(0)->set_count(0); }},
      {"many workers",
       [](auto& state) { state.mutable_participants(0)->mutable_roles(0)->set_count(kMaxWorkers); }},
      {"many roles",
       [](auto& state) {
         for (int i = 0; i < kMaxRoles; ++i) state.mutable_participants(0)->add_roles()->set_count(1);
       }},
      {"unready", [](auto& state) { state.mutable_participants(1)->set_ready(false); }},
      {"waits and is done", [](auto& state) { state.mutable_waiting(0)->set_done(true); }},
      {"done while nodes gather",
       [](auto& state) {
         state.set_phase(proto::RendezvousState::JOINING);
         state.clear_store_port();
         state.mutable_participants(0)->set_done(true);
       }},
      {"a store while nodes gather", [](auto& state) { state.set_phase(proto::RendezvousState::JOINING); }},
      {"success while it runs", [](auto& state) { state.set_succeeded(true); }},
      {"two outcomes",
       [](auto& state) {
         state.set_phase(proto::RendezvousState::CLOSED);
         state.set_succeeded(true);
       }},
      {"no outcome",
       [](auto& state) {
         state.set_phase(proto::RendezvousState::CLOSED);
         state.clear_failure();
       }},
      {"port", [](auto& state) { state.set_store_port(65536); }},
      {"exit code", [](auto& state) { state.mutable_failure()->set_exit_code(256); }},
      {"signal", [](auto& state) { state.mutable_failure()->set_signal(-1); }},
      {"failed rank", [](auto& state) { state.mutable_failure()->set_rank(-2); }},
      {"message",
       [](auto& state) { state.mutable_failure()->set_message(std::string(kMaxMessage + 1, 'x')); }},
  };
  proto::RendezvousState good;
  ASSERT_TRUE(good.ParseFromString(encode(running())));
  for (const auto& [name, spoil] : cases) {
    proto::RendezvousState state = good;
    spoil(state);
    EXPECT_EQ(decode(state.SerializeAsString()).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  for (const char* garbage : {"", "\xff\xff", "garbage"}) EXPECT_FALSE(decode(garbage).ok()) << garbage;
}

TEST(RendezvousRecord, FixedRanksAreDistinct) {
  Record record = running();
  record.settings.fixed_ranks = true;
  record.participants[0].rank = 1;
  record.participants[1].rank = 0;
  record.waiting.clear();
  EXPECT_TRUE(decode(encode(record)).ok());
  record.participants[1].rank = 1;
  EXPECT_FALSE(decode(encode(record)).ok());
  record.participants[1].rank = 2;
  EXPECT_FALSE(decode(encode(record)).ok());
}

TEST(RendezvousRecord, TextsAreCutAndMadeSafeForATerminal) {
  Record record = running();
  record.participants[0].node.host = "\x1b[2J\n";
  record.failure->message = "\x1b[31m" + std::string(2 * kMaxMessage, 'x');
  const absl::StatusOr<Record> back = decode(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->participants[0].node.host, "?[2J?");
  EXPECT_EQ(back->failure->message.size(), kMaxMessage);
  EXPECT_EQ(back->failure->message.substr(0, 5), "?[31m");
}

TEST(RendezvousRecord, NumbersOfAFailureAreClamped) {
  Record record = running();
  record.failure = Failure{.rank = -7, .local_rank = -7, .pid = -7, .exit_code = -15, .signal = 1000};
  const absl::StatusOr<Record> back = decode(encode(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->failure->exit_code, 0);
  EXPECT_EQ(back->failure->signal, 64);
}

TEST(RendezvousRecord, RecordWithAChangedByteIsRefusedOrValid) {
  const std::string good = encode(running());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ change);
      const absl::StatusOr<Record> record = decode(bytes);
      if (!record.ok()) continue;
      EXPECT_TRUE(decode(encode(*record)).ok()) << i;
    }
    static_cast<void>(decode(good.substr(0, i)));
  }
}

}  // namespace
}  // namespace gradwire::rendezvous
