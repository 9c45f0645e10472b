#include "gradwire/rpc/transfers/transfer_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/text/bytes_text.h"
#include "gradwire/rpc/core/envelope.h"

namespace gradwire::rpc {

absl::StatusOr<uint64_t> transfers_over(uint64_t option, const char* variable) {
  if (option != 0 || variable == nullptr || *variable == '\0') return option;
  uint64_t bytes = 0;
  if (absl::SimpleAtoi(variable, &bytes)) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("GRADWIRE_LOG_TRANSFERS_OVER: got \"",
                                                 absl::CHexEscape(variable),
                                                 "\", expected a number of bytes, for example 1073741824"));
}

std::string callee_of(const proto::Request& request) {
  switch (request.callee_case()) {
    case proto::Request::kFunction:
      return request.function();
    case proto::Request::kMethod:
      return request.method();
    case proto::Request::kConstructor:
      return request.constructor();
    case proto::Request::kOperator:
      return request.operator_();
    case proto::Request::kScript:
      return request.script();
    case proto::Request::kFetch:
      return "to_here";
    case proto::Request::kService:
      return absl::StrCat("service ", request.service().number());
    default:
      return "nothing";
  }
}

std::string transfer_name(const proto::Envelope& envelope, absl::string_view answered) {
  switch (envelope.body_case()) {
    case proto::Envelope::kRequest:
      return absl::StrCat("the call of \"", callee_of(envelope.request()), "\"");
    case proto::Envelope::kResponse:
      return answered.empty() ? "an answer" : absl::StrCat("the answer of \"", answered, "\"");
    case proto::Envelope::kPart:
      return "a part of a call or an answer";
    default:
      return "a message";
  }
}

namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
constexpr absl::string_view kWhole = "; the transport reports a tensor only when it is complete";

std::string cut(absl::string_view text, std::size_t most) {
  return text.size() <= most ? std::string(text) : absl::StrCat(text.substr(0, most), "...");
}

std::string rate_text(uint64_t bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  return absl::StrCat(bytes_text(seconds > 0 ? static_cast<double>(bytes) / seconds : 0), "/s");
}

}  // namespace

struct TransferWatch::Entry {
  enum class End { kNone, kComplete, kBroken };

  Entry(Transfer given, const ProgressTarget& target, uint64_t done)
      : transfer(std::move(given)), began(target.clock->now()), line_at(began), progress(target) {
    begin_bytes = line_bytes = last_bytes = done;
  }

  // `the call of "f" to worker "b"`
  std::string text() const {
    return absl::StrCat(transfer.what, is_sending() ? " to" : " from", " worker \"", transfer.worker, "\"");
  }
  bool is_sending() const { return transfer.direction == Transfer::Direction::kSending; }

  const Transfer transfer;
  const absl::Time began;
  // The bytes that had been sent or received at the beginning.
  uint64_t begin_bytes = 0;
  std::atomic<End> end{End::kNone};

  // Used by the timers' thread. The bytes that had been sent or received at the last line, and at the last
  // measurement.
  absl::Time line_at;
  uint64_t line_bytes = 0;
  uint64_t last_bytes = 0;
  bool over = false;
  Progress progress;
};

TransferWatch::TransferWatch(TimerQueue& timers, Options options)
    : timers_(timers),
      options_(std::move(options)),
      over_(options_.over == 0 || !options_.output->enabled() ? std::numeric_limits<uint64_t>::max()
                                                              : options_.over) {}

void TransferWatch::begin(Transfer transfer) {
  const std::optional<uint64_t> done = transfer.progress();
  if (!done.has_value() || *done >= transfer.bytes) return;
  transfer.what = cut(transfer.what, kMostName);
  const ProgressTarget target{.output = options_.output, .clock = &timers_.clock()};
  auto entry = std::make_shared<Entry>(std::move(transfer), target, *done);
  MutexLock lock(mutex_);
  if (ended_ || entries_.size() >= kMostTransfers) return;
  entries_.push_back(std::move(entry));
  if (scheduled_) return;
  schedule();
  scheduled_ = true;
}

void TransferWatch::received(uint64_t link) {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Entry>& entry : entries_) {
    if (entry->transfer.link != link || entry->is_sending()) continue;
    Entry::End going = Entry::End::kNone;
    entry->end.compare_exchange_strong(going, Entry::End::kComplete);
  }
}

void TransferWatch::end_link(uint64_t link) {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Entry>& entry : entries_) {
    Entry::End going = Entry::End::kNone;
    if (entry->transfer.link == link) entry->end.compare_exchange_strong(going, Entry::End::kBroken);
  }
}

void TransferWatch::end() {
  std::vector<std::shared_ptr<Entry>> dropped;
  MutexLock lock(mutex_);
  ended_ = true;
  dropped.swap(entries_);
}

std::size_t TransferWatch::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

// The timer does not keep this object.
void TransferWatch::schedule() {
  timers_.schedule(timers_.clock().now() + kTick, [weak = weak_from_this()] {
    if (const std::shared_ptr<TransferWatch> watch = weak.lock()) watch->tick();
  });
}

// The threads that send and receive only mark the end of a message. This thread writes all lines, without the
// lock:
//   1. Measure all messages. A message that is sent ends when the connection has nothing of it left.
//   2. Write the last lines of those that have ended, and remove them.
//   3. Write a line about the oldest of the others, if that is due.
void TransferWatch::tick() {
  std::vector<std::shared_ptr<Entry>> entries;
  {
    MutexLock lock(mutex_);
    entries = entries_;
  }
  std::vector<std::shared_ptr<Entry>> going;
  for (const std::shared_ptr<Entry>& entry : entries) {
    const std::optional<uint64_t> done = entry->transfer.progress();
    if (done.has_value()) entry->last_bytes = std::max(entry->last_bytes, *done);
    const Entry::End end = entry->end.load();
    const bool sent = entry->is_sending() && done.has_value() && *done >= entry->transfer.bytes;
    const bool complete = end == Entry::End::kComplete || (end == Entry::End::kNone && sent);
    entry->over = complete || end == Entry::End::kBroken || !done.has_value();
    if (entry->over) {
      finish(*entry, complete);
    } else {
      going.push_back(entry);
    }
  }
  if (!going.empty()) show(*going.front(), going.front()->last_bytes, going.size() - 1);
  bool again = false;
  {
    MutexLock lock(mutex_);
    // `entries` keeps them until the lock is released.
    std::erase_if(entries_, [](const std::shared_ptr<Entry>& entry) { return entry->over; });
    again = !entries_.empty();
    scheduled_ = again;
  }
  if (again) schedule();
}

void TransferWatch::finish(Entry& entry, bool complete) const {
  const Transfer& transfer = entry.transfer;
  const std::string self = absl::StrCat("worker \"", options_.self, "\" ");
  if (complete) {
    const uint64_t bytes = transfer.bytes - entry.begin_bytes;
    entry.progress.finish(absl::StrCat(self, entry.is_sending() ? "has sent " : "has received ", entry.text(),
                                       ": ", bytes_text(static_cast<double>(transfer.bytes)), ", ",
                                       rate_text(bytes, timers_.clock().now() - entry.began)));
  } else {
    entry.progress.finish(absl::StrCat(self, entry.is_sending() ? "has not sent " : "has not received ",
                                       entry.text(), " completely: the connection ended after ",
                                       bytes_text(static_cast<double>(entry.last_bytes)), " of ",
                                       bytes_text(static_cast<double>(transfer.bytes))));
  }
}

void TransferWatch::show(Entry& entry, uint64_t done, std::size_t others) {
  const absl::Time now = timers_.clock().now();
  const bool moving = options_.output->can_move();
  // Another message may have had a line less than 10 s ago.
  if (!moving && now < next_line_) return;
  entry.progress.update([&]() -> std::optional<ProgressState> {
    const Transfer& transfer = entry.transfer;
    const std::string rate = rate_text(done - entry.line_bytes, now - entry.line_at);
    entry.line_at = now;
    entry.line_bytes = done;
    if (!moving) next_line_ = now + ProgressSchedule::kLogAfter;
    std::string text =
        absl::StrCat("worker \"", options_.self, "\" is ", entry.is_sending() ? "sending " : "receiving ",
                     entry.text(), ": ", bytes_text(static_cast<double>(done)), " of ",
                     bytes_text(static_cast<double>(transfer.bytes)), ", ", rate);
    if (transfer.whole_buffers) absl::StrAppend(&text, kWhole);
    if (others > 0)
      absl::StrAppend(
          &text, "; ", others,
          others == 1 ? " other large message is on its way" : " other large messages are on their way");
    return ProgressState{.text = std::move(text),
                         .done = static_cast<int64_t>(done),
                         .total = static_cast<int64_t>(transfer.bytes)};
  });
}

void watch_sending(TransferWatch& watch, const MessageRoute& route, const proto::Envelope& envelope,
                   const proto::Request* answered, Sending sending) {
  // Most messages have left by now, at least with shared memory.
  if (sending.unsent() == uint64_t{0}) return;
  watch.begin(
      {.direction = Transfer::Direction::kSending,
       .what = transfer_name(envelope, answered == nullptr ? "" : callee_of(*answered)),
       .worker = route.worker,
       .link = route.link,
       .bytes = route.bytes,
       .whole_buffers = sending.whole_buffers,
       .progress = [bytes = route.bytes, unsent = std::move(sending.unsent)]() -> std::optional<uint64_t> {
         const std::optional<uint64_t> left = unsent();
         return left.has_value() ? std::make_optional(bytes - std::min(bytes, *left)) : std::nullopt;
       }});
}

void watch_receiving(TransferWatch& watch, const MessageRoute& route, const std::string& header,
                     ArrivingOn arriving, absl::FunctionRef<std::string(uint64_t)> callee_of) {
  EnvelopeBox envelope;
  const std::shared_ptr<transport::Connection> connection = arriving.connection.lock();
  if (connection == nullptr || !envelope->ParseFromString(header)) return;
  watch.begin(
      {.direction = Transfer::Direction::kReceiving,
       .what = transfer_name(*envelope,
                             envelope->has_response() ? callee_of(envelope->response().call_id()) : ""),
       .worker = route.worker,
       .link = route.link,
       .bytes = route.bytes,
       .whole_buffers = connection->counts_whole_buffers(),
       .progress = [weak = std::move(arriving.connection), bytes = route.bytes,
                    before = connection->bytes_arrived() - arriving.arrived]() -> std::optional<uint64_t> {
         const std::shared_ptr<transport::Connection> connection = weak.lock();
         if (connection == nullptr) return std::nullopt;
         return std::min(bytes, connection->bytes_arrived() - before);
       }});
}

}  // namespace gradwire::rpc
