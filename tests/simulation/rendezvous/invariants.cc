#include <algorithm>

#include "gradwire/tests/simulation/rendezvous/world.h"

namespace gradwire::rendezvous_simulation {
namespace {

using rendezvous::Member;
using rendezvous::Phase;
using rendezvous::Record;
using What = Coverage::What;

std::string describe(const Record& record) {
  std::string text = absl::StrCat(record.phase == Phase::kJoining   ? "JOINING "
                                  : record.phase == Phase::kRunning ? "RUNNING "
                                                                    : "CLOSED ",
                                  record.round, ", restarts ", record.restarts_used, ":");
  for (const Member& member : record.participants) {
    absl::StrAppend(&text, " ", member.id, member.ready ? "" : "?", member.done ? "!" : "");
  }
  if (!record.waiting.empty()) absl::StrAppend(&text, " |");
  for (const Member& member : record.waiting) absl::StrAppend(&text, " ", member.id);
  return text;
}

bool has(const std::vector<Member>& members, const std::string& id) {
  return std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.id == id; });
}

bool has(const Record& record, const std::string& id) {
  return has(record.participants, id) || has(record.waiting, id);
}

bool done(const Record& record, const std::string& id) {
  return std::any_of(record.participants.begin(), record.participants.end(),
                     [&](const Member& member) { return member.id == id && member.done; });
}

}  // namespace

void World::violate(std::string what) {
  if (!violation_.empty()) return;
  trace("VIOLATION: ", what);
  violation_ = std::move(what);
}

SimNode* World::by_id(const std::string& id) {
  for (auto& node : nodes_) {
    if (node->live() && node->machine->id() == id) return node.get();
  }
  return nullptr;
}

void World::cover(What what) {
  if (coverage_ == nullptr) return;
  coverage_->hit(0,
                 !record_                            ? Coverage::kNone
                 : record_->phase == Phase::kJoining ? Coverage::kJoining
                 : record_->phase == Phase::kRunning ? Coverage::kRunning
                                                     : Coverage::kClosed,
                 static_cast<std::size_t>(what));
}

void World::check_write(SimNode& writer, const Record& after) {
  trace(writer.name(), " writes ", describe(after));
  if (!record_) {
    cover(What::kCreated);
    if (after.phase == Phase::kRunning) check_begun(after);
    return;
  }
  const Record& before = *record_;
  if (before.phase == Phase::kClosed) return violate("the record changes after the job is over");
  if (after.version != before.version + 1) return violate("a version is skipped");
  if (after.settings != before.settings || after.origin != before.origin)
    return violate("the settings change");
  if (after.round < before.round || after.round > before.round + 1) return violate("a round is skipped");
  if (after.restarts_used < before.restarts_used || after.restarts_used > before.restarts_used + 1) {
    return violate("restarts are miscounted");
  }
  if (after.restarts_used > scenario_.settings.max_restarts + 1) return violate("a restart too many");
  if (after.phase == Phase::kRunning && before.phase == Phase::kJoining) check_begun(after);
  if (after.phase == Phase::kClosed && after.succeeded) {
    for (const Member& member : before.participants) {
      if (!work_done_.contains({member.id, before.round})) {
        return violate(absl::StrCat("the job succeeds, but the workers of ", member.id, " are not done"));
      }
    }
  }
  check_removed(writer, before, after);
  cover_write(writer, before, after);
}

void World::check_begun(const Record& after) {
  for (const Member& member : after.participants) {
    const SimNode* node = by_id(member.id);
    if (node != nullptr && node->workers) {
      return violate(absl::StrCat("round ", after.round, " begins while ", member.id,
                                  " has workers of round ", *node->workers));
    }
  }
  const int count = static_cast<int>(after.participants.size());
  if (count < after.settings.min_nodes || count > after.settings.max_nodes) {
    violate(absl::StrCat("a round begins with ", count, " nodes"));
  }
}

void World::check_removed(SimNode& writer, const Record& before, const Record& after) {
  for (const std::vector<Member>* members : {&before.participants, &before.waiting}) {
    for (const Member& member : *members) {
      if (has(after, member.id)) continue;
      const bool takes_part = members == &before.participants;
      const bool joining = before.phase == Phase::kJoining;
      if (member.id == writer.machine->id()) {
        if (!takes_part) {
          cover(What::kLeftWaiting);
        } else if (joining) {
          cover(What::kLeftJoining);
        }
        continue;
      }
      if (scenario_.no_node_is_lost()) {
        return violate(absl::StrCat(writer.name(), " removes ", member.id,
                                    " as lost, but no node was lost in this schedule"));
      }
      if (!takes_part) cover(What::kLostWaiting);
      if (takes_part && joining) cover(What::kLostJoining);
      const SimNode* node = by_id(member.id);
      if (node != nullptr && node->workers) cover(What::kRemovedWithWorkers);
    }
  }
}

void World::cover_write(SimNode& writer, const Record& before, const Record& after) {
  const bool was_joining = before.phase == Phase::kJoining, was_running = before.phase == Phase::kRunning;
  for (const Member& member : after.participants) {
    if (!has(before, member.id)) cover(What::kEntered);
    if (has(before.waiting, member.id)) cover(What::kLetIn);
    if (was_joining && member.ready && has(before.participants, member.id) &&
        !std::any_of(before.participants.begin(), before.participants.end(),
                     [&](const Member& old) { return old.id == member.id && old.ready; })) {
      cover(What::kReady);
    }
    if (member.done && !done(before, member.id)) cover(What::kDone);
  }
  for (const Member& member : after.waiting) {
    if (!has(before, member.id)) {
      cover(What::kEnteredWaiting);
      if (member.id.find('.') != std::string::npos) cover(What::kEnteredAgain);
    }
  }
  if (!before.store && after.store) cover(What::kStoreServed);
  if (was_joining && after.phase == Phase::kRunning) {
    const int count = static_cast<int>(after.participants.size());
    cover(count == after.settings.max_nodes                 ? What::kRunFull
          : before.call_off > 0 && count >= before.call_off ? What::kRunComplete
                                                            : What::kRunLastCall);
  }
  const bool by_worker = after.failure && after.failure->rank >= 0;
  if (was_running && after.phase == Phase::kJoining) {
    cover(after.restarts_used > before.restarts_used
              ? (by_worker ? What::kRestartFailure : What::kRestartLost)
          : has(after, writer.machine->id()) ? What::kNextGrown
                                             : What::kNextLeft);
  }
  if (after.phase == Phase::kClosed) {
    const bool lost = after.failure && after.failure->message.find("was lost") != std::string::npos;
    cover(after.succeeded ? What::kSucceeded
          : by_worker     ? What::kClosedFailure
          : lost          ? What::kClosedLost
          : was_joining   ? What::kClosedLeftJoining
                          : What::kClosedLeft);
  }
}

void World::check_run(SimNode& node, const rendezvous::RoundInfo& round) {
  if (node.workers) {
    return violate(
        absl::StrCat(node.name(), " runs round ", round.round, " beside workers of round ", *node.workers));
  }
  if (round.round <= node.last_round) {
    return violate(absl::StrCat(node.name(), " runs round ", round.round, " after round ", node.last_round));
  }
  const int count = static_cast<int>(round.nodes.size());
  if (round.group_rank < 0 || round.group_rank >= count ||
      round.nodes[round.group_rank].host != node.name()) {
    return violate(absl::StrCat(node.name(), " is not at its rank ", round.group_rank));
  }
  if ((scenario_.round_store != rendezvous::RoundStore::kReady) != round.store.has_value()) {
    return violate("a round's store is missing");
  }
  if (count == scenario_.settings.max_nodes && scenario_.settings.fixed_ranks &&
      scenario_.launchers[node.launcher].rank != round.group_rank) {
    return violate(absl::StrCat(node.name(), " has not got its fixed rank"));
  }
  if (!ranks_.insert({round.round, round.group_rank}).second) return violate("two nodes have the same rank");
  rendezvous::RoundInfo same = round;
  same.group_rank = 0;
  const auto [known, first] = rounds_.insert({round.round, same});
  if (!first && known->second != same) violate(absl::StrCat("nodes disagree on round ", round.round));
}

void World::check_outcome(SimNode& node, const rendezvous::Outcome& outcome) {
  trace(node.name(), " ends: ", outcome.status.ToString());
  const bool closed = record_ && record_->phase == Phase::kClosed;
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk:
      cover(What::kEndedOk);
      if (!closed || !record_->succeeded)
        violate(absl::StrCat(node.name(), " ends with success, but the job has not succeeded"));
      return;
    case absl::StatusCode::kAborted:
      cover(What::kEndedAborted);
      if (!closed || outcome.failure != record_->failure) {
        violate(absl::StrCat(node.name(), " ends with another failure than the job's"));
      }
      return;
    case absl::StatusCode::kFailedPrecondition: {
      const bool late = outcome.status.message().find("is over") != absl::string_view::npos;
      cover(late ? What::kEndedTooLate : What::kEndedRankTaken);
      if (late && !closed) violate("the job is not over");
      if (!late && !scenario_.settings.fixed_ranks) violate("a rank is taken in a job without fixed ranks");
      return;
    }
    case absl::StatusCode::kInvalidArgument:
      cover(What::kEndedOtherSettings);
      if (std::none_of(scenario_.launchers.begin(), scenario_.launchers.end(),
                       [](const auto& launcher) { return launcher.other_settings; })) {
        violate(absl::StrCat(node.name(), ": ", outcome.status.message()));
      }
      return;
    case absl::StatusCode::kDeadlineExceeded:
      return check_too_few(node);
    case absl::StatusCode::kCancelled:
      cover(What::kEndedLeft);
      return;
    case absl::StatusCode::kUnavailable:
      cover(What::kEndedStoreLost);
      if (outcome.status.message() != "store lost") violate(std::string(outcome.status.message()));
      return;
    default:
      return violate(absl::StrCat(node.name(), ": ", outcome.status.ToString()));
  }
}

void World::check_too_few(const SimNode& node) {
  cover(What::kEndedTooFew);
  // With fixed ranks there may be many nodes whose ranks do not complete the job.
  if (now_ < scenario_.calm + 2 * kJoinTimeout || scenario_.settings.fixed_ranks) return;
  const auto others = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& other) {
    return other->live() && other->machine->update().kind != rendezvous::RendezvousUpdate::Kind::kEnded;
  });
  if (others + 1 >= scenario_.settings.min_nodes)
    violate(absl::StrCat(node.name(), " reports too few nodes, but there are enough"));
}

// Returns an empty string if every live node is in a stable state, else the reason why not.
std::string World::unsettled() const {
  if (now_ < frozen_until_) return "nodes are yet to start";
  for (const auto& node : nodes_) {
    if (!node->live()) continue;
    if (now_ < node->paused_until) return "nodes are paused";
    const std::string prefix = absl::StrCat(node->name(), ": ");
    if (node->machine->update().kind == rendezvous::RendezvousUpdate::Kind::kEnded)
      return prefix + "it has ended but does not exit";
    if (!record_ || record_->phase != Phase::kRunning) return prefix + "no round begins";
    if (has(record_->waiting, node->machine->id())) {
      const bool full = static_cast<int>(record_->participants.size()) == record_->settings.max_nodes;
      const bool ending = std::any_of(record_->participants.begin(), record_->participants.end(),
                                      [](const Member& member) { return member.done; });
      if (!full && !ending) return prefix + "it waits although there is room";
    } else if (!has(record_->participants, node->machine->id())) {
      return prefix + "it is not in the job";
    } else if (node->workers != record_->round || node->stopping) {
      return prefix + "it does not run the round";
    }
  }
  if (!record_ || record_->phase != Phase::kRunning) return "";
  for (const Member& member : record_->participants) {
    const bool there = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
      return node->live() && node->machine->id() == member.id;
    });
    const bool any = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->live(); });
    if (any && !there && !member.done) return member.id + ": no node notices that it is lost";
  }
  return "";
}

}  // namespace gradwire::rendezvous_simulation
