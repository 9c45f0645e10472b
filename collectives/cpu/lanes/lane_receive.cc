// The part of LaneCore that receives, and hears what comes in its lanes.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/cpu/lanes/lane_core.h"

namespace gradwire::collectives::cpu {
namespace {

// Of one lane before the others get their turn.
constexpr int kRecordsPerTurn = 64;

absl::Status no_record(const char* why) { return absl::InvalidArgumentError(why); }

bool is_code(uint64_t code) {
  return code > 0 && code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace

Future<int> LaneCore::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  const auto receive = std::make_shared<LaneReceive>(executor_);
  const Future<int> future = receive->promise.future();
  receive->src = src;
  receive->tag = tag;
  receive->data = data;
  receive->deadline = deadline;
  absl::Status refused = src == Matcher::kAny ? absl::OkStatus() : check(src);
  Todos todos;
  {
    MutexLock lock(mutex_);
    if (refused.ok() && closed_) refused = absl::CancelledError("this rank has left the group");
    if (refused.ok()) {
      receive->id = next_id_++;
      receives_.emplace(receive->id, receive);
      // What was taken back is not matched; but what can be copied right away is.
      if (!next_is_eager_locked(src)) poll_locked(todos);
      Actions actions;
      matcher_.post(receive->id, src, kLaneChannel, tag, data.size, actions);
      apply_locked(std::move(actions), todos);
      const bool waits = receives_.contains(receive->id);
      if (waits) {
        receive->promise.on_cancel([core = weak_from_this(), id = receive->id] {
          if (const std::shared_ptr<LaneCore> self = core.lock()) self->cancel_receive(id);
        });
        watch_locked(deadline);
      }
      // A match may have been an answer to the sender, too.
      if (waits || queued_ > 0) {
        arm_locked();
        poll_locked(todos);
        arm_and_poll_locked(todos);
      }
    } else {
      finish_locked(receive, std::move(refused), todos);
    }
  }
  perform(todos);
  return future;
}

void LaneCore::cancel_receive(uint64_t id) {
  Todos todos;
  {
    MutexLock lock(mutex_);
    if (const ReceivePtr receive = find_receive_locked(id))
      end_receive_locked(receive, absl::CancelledError("cancelled by the caller"), todos);
  }
  perform(todos);
}

bool LaneCore::next_is_eager_locked(int src) {
  if (src == Matcher::kAny || src == options_.rank || !peer(src).in->news()) return false;
  const absl::StatusOr<LaneRecord> record = peer(src).in->peek();
  return record.ok() && record->kind == LaneKind::kEager;
}

bool LaneCore::try_take_locked(int src, int64_t tag, Span data, Todos& todos) {
  Peer& from = peer(src);
  const absl::StatusOr<LaneRecord> record = from.in->peek();
  if (!record.ok() || record->kind != LaneKind::kEager || record->tag != tag || record->size != data.size)
    return false;
  Actions actions;
  if (!matcher_.passed(src, record->size, actions).ok()) return false;
  if (data.size > 0) std::memcpy(data.data, record->payload, data.size);
  if (from.in->release(*record)) todos.written.push_back(src);
  apply_locked(std::move(actions), todos);
  return true;
}

std::optional<absl::StatusOr<int>> LaneCore::try_receive(int src, int64_t tag, Span data) {
  if (src == Matcher::kAny || src == options_.rank) return std::nullopt;
  if (absl::Status wrong = check(src); !wrong.ok()) return wrong;
  // Once, and once more after a look for news.
  for (const bool may_look : {true, false}) {
    LaneReader::Look look;
    Todos todos;
    bool taken = false;
    {
      MutexLock lock(mutex_);
      if (closed_ || peer(src).lost || matcher_.size() > 0 || !matcher_.state(kLaneChannel).ok())
        return std::nullopt;
      look = peer(src).in->look();
      if (look.news()) {
        if (!try_take_locked(src, tag, data, todos)) return std::nullopt;
        if (!peer(src).queue.empty()) flush_locked(src, todos);
        // What found no room is written when the reader rings.
        if (queued_ > 0) arm_and_poll_locked(todos);
        taken = true;
      } else if (!may_look || queued_ > 0 || core_is_wanted(crowded_ ? Matcher::kAny : src)) {
        return std::nullopt;
      }
    }
    if (taken) {
      perform(todos);
      return src;
    }
    if (!look_for(look)) return std::nullopt;
  }
  return std::nullopt;
}

LaneCore::ReceivePtr LaneCore::find_receive_locked(uint64_t id) {
  const auto found = receives_.find(id);
  return found == receives_.end() ? nullptr : found->second;
}

void LaneCore::end_receive_locked(const ReceivePtr& receive, absl::Status status, Todos& todos) {
  matcher_.cancel(receive->id);
  finish_locked(receive, std::move(status), todos);
}

void LaneCore::apply_locked(Actions actions, Todos& todos) {
  using Kind = Matcher::Action::Kind;
  while (!actions.empty()) {
    Actions more;
    for (Matcher::Action& action : actions) {
      const bool from_self = action.src == options_.rank;
      switch (action.kind) {
        case Kind::kDeliver:
          if (const ReceivePtr receive = find_receive_locked(action.receive)) {
            copy_bytes(receive->data.data, action.payload.data(), action.payload.size());
            finish_locked(receive, action.src, todos);
          }
          break;
        case Kind::kFail:
          if (const ReceivePtr receive = find_receive_locked(action.receive))
            finish_locked(receive, std::move(action.status), todos);
          break;
        case Kind::kAsk:
          on_match_locked(action, more, todos);
          break;
        case Kind::kRefuse: {
          const auto stream = peer(action.src).streams.find(action.message);
          if (from_self) {
            on_refuse_locked(action.src, action.message, action.status.code(), action.bytes, todos);
          } else if (stream != peer(action.src).streams.end()) {
            stream->second.unwanted = true;
            stream->second.held = nullptr;
          } else if (peer(action.src).queue.size() > 2 * kMaxAnnounced) {
            // It announces, and never reads.
            lose_locked(action.src, no_record("it does not hear what it is told"), todos);
          } else {
            say_locked(action.src, {.kind = LaneKind::kRefuse,
                                    .code = static_cast<uint8_t>(action.status.code()),
                                    .size = action.bytes,
                                    .id = action.message});
          }
          break;
        }
        case Kind::kCredit:
          if (from_self) {
            peer(action.src).eager_bytes -= action.bytes;
          } else {
            say_locked(action.src, {.kind = LaneKind::kCredit, .size = action.bytes});
          }
          break;
      }
    }
    actions = std::move(more);
  }
}

// A receive has been found for a message that comes in pieces.
void LaneCore::on_match_locked(const Matcher::Action& action, Actions& more, Todos& todos) {
  const ReceivePtr receive = find_receive_locked(action.receive);
  if (receive == nullptr) return;
  if (action.src == options_.rank) {
    const auto found = sends_.find(action.message);
    if (found == sends_.end()) return;
    const SendPtr send = found->second;
    settle_locked(*send);
    (void)matcher_.data(action.src, action.message, Payload(send->data.data, send->data.size), more);
    finish_locked(send, absl::OkStatus(), todos);
    return;
  }
  auto [stream, fresh] = peer(action.src).streams.try_emplace(action.message);
  if (fresh) {
    stream->second.size = receive->data.size;
    say_locked(action.src, {.kind = LaneKind::kAsk, .id = action.message});
  }
  stream->second.receive = receive;
  copy_bytes(receive->data.data, stream->second.held.get(), stream->second.got);
  stream->second.held = nullptr;
  if (stream->second.size == 0) (void)end_stream_locked(action.src, action.message, more);
}

bool LaneCore::read_locked(int src, Todos& todos) {
  Peer& from = peer(src);
  int records = 0;
  for (; records < kRecordsPerTurn && !from.lost && from.in->news(); ++records) {
    const absl::StatusOr<LaneRecord> record = from.in->peek();
    absl::Status status = record.status();
    if (status.ok()) status = hear_locked(src, *record, todos);
    if (!status.ok()) {
      log(LogLevel::kWarning, "rank ", options_.rank, " hears no more of rank ", src, ": ", status.message());
      lose_locked(src,
                  absl::InvalidArgumentError(absl::StrCat("says what is no message: ", status.message())),
                  todos);
      return true;
    }
    if (from.in->release(*record)) todos.written.push_back(src);
  }
  if (records == kRecordsPerTurn) more_ = true;
  return records > 0;
}

absl::Status LaneCore::hear_locked(int src, const LaneRecord& record, Todos& todos) {
  Peer& from = peer(src);
  Actions actions;
  switch (record.kind) {
    case LaneKind::kEager: {
      // What a receive waits for is copied once.
      Payload payload = matcher_.awaits(src, kLaneChannel, record.tag)
                            ? Payload(const_cast<char*>(record.payload), record.size)
                            : Payload::copy_of(record.payload, record.size);
      GRADWIRE_RETURN_IF_ERROR(matcher_.eager(src, kLaneChannel, record.tag, std::move(payload), actions));
      break;
    }
    case LaneKind::kBegin:
      return on_begin_locked(src, record, todos);
    case LaneKind::kAnnounce:
      if (record.id == 0) return no_record("an announcement without id");
      // One that nobody wanted is the matcher's no more, and still comes.
      if (from.streams.contains(record.id)) return no_record("an announcement of what was begun");
      GRADWIRE_RETURN_IF_ERROR(
          matcher_.announce(src, kLaneChannel, record.tag, record.size, record.id, actions));
      break;
    case LaneKind::kPiece:
      GRADWIRE_RETURN_IF_ERROR(on_piece_locked(src, record, actions));
      break;
    case LaneKind::kWithdraw: {
      if (!is_code(record.code)) return no_record("a withdrawal without reason");
      const auto stream = from.streams.find(record.id);
      if (stream != from.streams.end()) {
        if (stream->second.unasked)
          GRADWIRE_RETURN_IF_ERROR(matcher_.passed(src, stream->second.size, actions));
        if (from.unasked == record.id) from.unasked = 0;
        from.streams.erase(stream);
      }
      matcher_.withdraw(src, record.id, static_cast<absl::StatusCode>(record.code), actions);
      break;
    }
    case LaneKind::kAsk:
      on_ask_locked(src, record.id);
      break;
    case LaneKind::kRefuse:
      if (!is_code(record.code)) return no_record("a refusal without reason");
      on_refuse_locked(src, record.id, static_cast<absl::StatusCode>(record.code), record.size, todos);
      break;
    case LaneKind::kCredit:
      if (record.size > from.eager_bytes) return no_record("it returns more than it was sent");
      from.eager_bytes -= record.size;
      break;
  }
  apply_locked(std::move(actions), todos);
  return absl::OkStatus();
}

absl::Status LaneCore::on_begin_locked(int src, const LaneRecord& record, Todos& todos) {
  Peer& from = peer(src);
  if (record.id == 0 || record.size == 0 || record.size > kEagerWindow)
    return no_record("the beginning of no message");
  if (from.unasked != 0) return no_record("a message in another");
  auto [stream, fresh] = from.streams.try_emplace(record.id);
  if (!fresh) return no_record("a message that was begun before");
  stream->second.size = record.size;
  stream->second.unasked = true;
  from.unasked = record.id;
  Actions actions;
  GRADWIRE_RETURN_IF_ERROR(matcher_.announce(src, kLaneChannel, record.tag, record.size, record.id, actions));
  apply_locked(std::move(actions), todos);
  const auto begun = from.streams.find(record.id);
  if (begun != from.streams.end() && begun->second.receive == nullptr && !begun->second.unwanted)
    begun->second.held = std::make_unique_for_overwrite<char[]>(record.size);
  return absl::OkStatus();
}

absl::Status LaneCore::on_piece_locked(int src, const LaneRecord& record, Actions& actions) {
  Peer& from = peer(src);
  const auto found = from.streams.find(record.id);
  if (found == from.streams.end()) return no_record("a piece of a message that was not asked for");
  LaneStream& stream = found->second;
  if (record.size == 0 || record.size > stream.size - stream.got) return no_record("a piece too much");
  // A receive that has ended is not written to.
  const bool wanted = stream.receive != nullptr && receives_.contains(stream.receive->id);
  char* const to = wanted ? static_cast<char*>(stream.receive->data.data) : stream.held.get();
  if (to != nullptr) std::memcpy(to + stream.got, record.payload, record.size);
  stream.got += record.size;
  return stream.got < stream.size ? absl::OkStatus() : end_stream_locked(src, record.id, actions);
}

absl::Status LaneCore::end_stream_locked(int src, uint64_t id, Actions& actions) {
  Peer& from = peer(src);
  auto entry = from.streams.extract(id);
  LaneStream& stream = entry.mapped();
  if (from.unasked == id) from.unasked = 0;
  if (stream.held != nullptr) {
    // It goes on waiting as a message that is here.
    return matcher_.came(src, id, Payload::copy_of(stream.held.get(), stream.size), actions);
  }
  if (stream.unasked) GRADWIRE_RETURN_IF_ERROR(matcher_.passed(src, stream.size, actions));
  if (stream.unwanted) return absl::OkStatus();
  void* const data = stream.receive == nullptr ? nullptr : stream.receive->data.data;
  return matcher_.data(src, id, Payload(data, stream.size), actions);
}

}  // namespace gradwire::collectives::cpu
