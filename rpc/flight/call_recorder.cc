#include "gradwire/rpc/flight/call_recorder.h"

#include <cstring>

namespace gradwire::rpc {
namespace {

enum Word : std::size_t {
  kBegan,
  // The code in the highest byte, and then the nanoseconds from the beginning until it started to run. 0: it
  // has not started.
  kRun,
  // The nanoseconds from the beginning to the end, plus one; 0 until the end.
  kEnded,
  kPeer,
  kNumber,
  kParentIncarnation,
  kParentNumber,
  kName,
};

constexpr int kCodeShift = 56;
constexpr uint64_t kRunMask = (uint64_t{1} << kCodeShift) - 1;

// The head of a record, one byte each.
constexpr int kParentShift = 8;
constexpr int kSizeShift = 16;
constexpr int kCutShift = 24;

// At least 1.
uint64_t since(uint64_t began, absl::Time now) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixNanos(now) - static_cast<int64_t>(began))) +
         1;
}

}  // namespace

uint64_t CallRecorder::begin(CallEvent::Kind kind, uint64_t peer, uint64_t number, const CallParent& parent,
                             absl::string_view name, absl::Time now) {
  if (ring_ == nullptr) return kNone;
  Ring::Words words;
  words[kBegan] = static_cast<uint64_t>(absl::ToUnixNanos(now));
  words[kRun] = 0;
  words[kEnded] = 0;
  words[kPeer] = peer;
  words[kNumber] = number;
  words[kParentIncarnation] = parent.incarnation;
  words[kParentNumber] = parent.number;
  // Functions differ in the ends of their names: the beginning is their namespace.
  const bool cut = name.size() > CallEvent::kMaxName;
  if (cut) name.remove_prefix(name.size() - CallEvent::kMaxName);
  std::fill(words.begin() + kName, words.end(), 0);
  std::memcpy(&words[kName], name.data(), name.size());
  return ring_->add(static_cast<uint32_t>(kind) | static_cast<uint32_t>(parent.kind) << kParentShift |
                        static_cast<uint32_t>(name.size()) << kSizeShift |
                        static_cast<uint32_t>(cut) << kCutShift,
                    words);
}

void CallRecorder::started(uint64_t record, absl::Time now) {
  if (ring_ == nullptr || record == kNone) return;
  ring_->change(record, [&](auto& words) {
    const uint64_t began = words[kBegan].load(std::memory_order_relaxed);
    words[kRun].store(since(began, now) & kRunMask, std::memory_order_release);
  });
}

void CallRecorder::ended(uint64_t record, absl::Time now, absl::StatusCode code) {
  if (ring_ == nullptr || record == kNone) return;
  ring_->change(record, [&](auto& words) {
    const uint64_t run = words[kRun].load(std::memory_order_relaxed) & kRunMask;
    words[kRun].store(run | static_cast<uint64_t>(code) << kCodeShift, std::memory_order_release);
    // The last word that changes, so a record that has ended has its code.
    words[kEnded].store(since(words[kBegan].load(std::memory_order_relaxed), now), std::memory_order_release);
  });
}

bool CallRecorder::read(uint64_t record, CallEvent& event) const {
  uint32_t head = 0;
  Ring::Words words;
  if (ring_ == nullptr || !ring_->read(record, head, words)) return false;
  event.kind = static_cast<CallEvent::Kind>(head & 0xff);
  event.parent.kind = static_cast<CallParent::Kind>(head >> kParentShift & 0xff);
  event.parent.incarnation = words[kParentIncarnation];
  event.parent.number = words[kParentNumber];
  event.peer = words[kPeer];
  event.number = words[kNumber];
  event.began = static_cast<int64_t>(words[kBegan]);
  const uint64_t run = words[kRun] & kRunMask;
  event.started = run == 0 ? 0 : static_cast<int64_t>(words[kBegan] + run - 1);
  event.ended = words[kEnded] == 0 ? 0 : static_cast<int64_t>(words[kBegan] + words[kEnded] - 1);
  event.code = static_cast<uint8_t>(words[kRun] >> kCodeShift);
  event.name_size = std::min<std::size_t>(head >> kSizeShift & 0xff, CallEvent::kMaxName);
  event.name_cut = (head >> kCutShift & 1) != 0;
  std::memcpy(event.name, &words[kName], CallEvent::kMaxName);
  return true;
}

}  // namespace gradwire::rpc
