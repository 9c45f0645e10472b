#include "gradwire/tools/launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gradwire::rendezvous {

absl::Status check(const Options& options) {
  const Settings& settings = options.settings;
  if (settings.min_nodes < 1 || settings.max_nodes < settings.min_nodes || settings.max_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job has 1 to ", kMaxNodes,
                     " nodes, and MIN of them at most MAX: ", settings.min_nodes, ":", settings.max_nodes));
  }
  if (settings.max_restarts < 0) return absl::InvalidArgumentError("max_restarts is negative");
  if (settings.fixed_ranks != options.node_rank.has_value()) {
    return absl::InvalidArgumentError("a node rank is given exactly where ranks are fixed");
  }
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= settings.max_nodes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("node rank ", *options.node_rank, " is not one of ", settings.max_nodes, " nodes"));
  }
  if (options.self.roles.size() > kMaxRoles) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxRoles, " roles on a node"));
  }
  int workers = 0;
  for (const Role& role : options.self.roles) {
    if (role.count < 1 || role.count > kMaxWorkers - workers || role.name.size() > kMaxName) {
      return absl::InvalidArgumentError(absl::StrCat("role ", role.name, " with ", role.count, " workers"));
    }
    workers += role.count;
  }
  // An id gets a suffix when the node enters again.
  if (options.node_id.empty() || options.node_id.size() > kMaxName / 2 ||
      options.self.host.size() > kMaxName || options.self.address.size() > kMaxName ||
      options.run_id.size() > kMaxName) {
    return absl::InvalidArgumentError("a node's id, host or address, or the job's id, is empty or too long");
  }
  if (options.keep_alive_interval <= absl::ZeroDuration() || options.keep_alive_max_attempt < 1 ||
      options.watched < 1) {
    return absl::InvalidArgumentError("keep-alives need an interval and at least one attempt");
  }
  return absl::OkStatus();
}

Rendezvous::Rendezvous(Options options, absl::Time now)
    : options_(std::move(options)),
      me_{.id = options_.node_id, .node = options_.self, .rank = options_.node_rank},
      next_beat_(now),
      watch_(options_.keep_alive_interval, options_.keep_alive_max_attempt) {}

Rendezvous::Wanted Rendezvous::wanted(absl::Time now) {
  Wanted wanted;
  if (ended_) {
    linger(now);
    if (done_) return wanted;
    if (!beat_deleted_) {
      wanted.beat = {.id = me_.id};
      wanted.wake = now;
    } else {
      wanted.look_at = watch_.due(now);
      wanted.wake = std::min(watch_.next(), linger_until_);
    }
    return wanted;
  }
  advance(now);
  if (ended_) return this->wanted(now);
  if (now >= next_beat_) wanted.beat = {.id = me_.id, .value = absl::StrCat(beats_ + 1)};
  wanted.look_at = watch_.due(now);
  wanted.change = change_;
  wanted.wake = std::min(next_beat_, watch_.next());
  if (joining_since_) wanted.wake = std::min(wanted.wake, *joining_since_ + options_.join_timeout);
  if (call_since_) {
    const absl::Time end_of_call = *call_since_ + options_.last_call_timeout;
    // Once it is over, it is the others' readiness that is waited for.
    if (end_of_call > now) wanted.wake = std::min(wanted.wake, end_of_call);
  }
  return wanted;
}

void Rendezvous::beaten(absl::Time now) {
  if (ended_) {
    beat_deleted_ = true;
    return linger(now);
  }
  ++beats_;
  next_beat_ = now + options_.keep_alive_interval;
}

void Rendezvous::looked(const std::vector<std::optional<std::string>>& beats, absl::Time now) {
  watch_.looked(beats, now);
  if (ended_) return linger(now);
  advance(now);
}

void Rendezvous::read(std::optional<absl::string_view> bytes, absl::Time now) {
  if (ended_) return;
  if (!bytes) {
    if (record_) {
      return end({.status = absl::UnavailableError("the store has lost what the job's nodes agreed on")},
                 now);
    }
    absent_ = true;
    return advance(now);
  }
  if (record_ && *bytes == bytes_) return advance(now);
  absl::StatusOr<Record> record = decode(*bytes);
  if (!record.ok()) return end({.status = record.status()}, now);
  if (record_ && record->origin != record_->origin) {
    return end({.status = absl::UnavailableError(
                    "the store has lost what the job's nodes agreed on: another job has "
                    "begun in its place")},
               now);
  }
  // An answer that comes after a later one.
  if (record_ && record->version < record_->version) return;
  bytes_ = std::string(*bytes);
  record_ = *std::move(record);
  advance(now);
}

void Rendezvous::lose_store(absl::Status status) {
  if (!ended_) end({.status = std::move(status)}, absl::InfinitePast());
  done_ = true;
}

void Rendezvous::ready(absl::Time now) {
  if (!engaged_ || !(news_.kind == News::Kind::kStop || failure_ || workers_done_)) return;
  engaged_.reset();
  advance(now);
}

void Rendezvous::workers_failed(const Failure& failure, absl::Time now) {
  if (!engaged_ || failure_ || workers_done_) return;
  failure_ = failure;
  advance(now);
}

void Rendezvous::workers_done(absl::Time now) {
  if (!engaged_ || failure_) return;
  workers_done_ = true;
  advance(now);
}

void Rendezvous::store_served(const Address& address, absl::Time now) {
  if (!engaged_) return;
  served_ = address;
  advance(now);
}

void Rendezvous::leave(absl::string_view reason, absl::Time now) {
  if (leave_reason_) return;
  leave_reason_ = std::string(reason);
  advance(now);
}

void Rendezvous::update_news() {
  if (ended_) return;
  if (!engaged_) {
    if (news_.kind != News::Kind::kWait) news_ = {};
    return;
  }
  const News::Kind kind = !round_is_mine()                          ? News::Kind::kStop
                          : options_.round_store && !record_->store ? News::Kind::kServeStore
                                                                    : News::Kind::kRun;
  if (kind == news_.kind && news_.round.round == round_.round) return;
  if (kind == News::Kind::kRun) round_.store = record_->store;
  news_.kind = kind;
  news_.round = round_;
}

void Rendezvous::end(Outcome outcome, absl::Time now) {
  ended_ = true;
  change_.reset();
  news_ = {.kind = News::Kind::kEnded, .outcome = std::move(outcome)};
  std::vector<std::string> others;
  if (options_.hosts_store && record_ && record_->phase == Phase::kClosed) {
    for (const std::vector<Member>* members : {&record_->participants, &record_->waiting}) {
      for (const Member& member : *members) {
        if (member.id != me_.id) others.push_back(member.id);
      }
    }
  }
  watch_.choose(others);
  // Somebody waits for this launcher's end.
  watch_.look_every(options_.keep_alive_interval / 20);
  // Twice what it takes to find out that one is lost.
  linger_until_ = now + 2 * options_.keep_alive_interval * (options_.keep_alive_max_attempt + 1);
}

void Rendezvous::linger(absl::Time now) {
  done_ = done_ || (beat_deleted_ && (now >= linger_until_ || watch_.all_gone(now)));
}

bool Rendezvous::round_is_mine() const {
  return record_ && record_->phase == Phase::kRunning && place_ == Place::kParticipant &&
         record_->round == engaged_;
}

}  // namespace gradwire::rendezvous
