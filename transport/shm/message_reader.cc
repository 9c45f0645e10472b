// Assembles messages from the records of a ring. The peer is not trusted: it may write anything into the
// ring, at any time. So bytes are copied out once, and only the copies are checked and used. Memory is
// allocated only for bytes that have arrived, or within the limits of a message.

#include "gradwire/transport/shm/message_reader.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/transport/common/message_sizes.h"

namespace gradwire::transport {
namespace {

// Maximum capacity of the list that is kept between messages.
constexpr std::size_t kListKept = 1'024;
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status malformed_record(const RecordWord& record) {
  return absl::InvalidArgumentError(absl::StrCat("malformed record in the ring: kind ", record.kind,
                                                 ", length ", record.length, ", buffers ", record.buffers));
}

}  // namespace

absl::StatusOr<MessageReader::Progress> MessageReader::read(const RingConsumer& ring,
                                                            const RecordWord& record, CatchUp catch_up) {
  try {
    if (!waiting_) GRADWIRE_RETURN_IF_ERROR(read_record(ring, record));
    if (has_blocks_) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool resolved, resolve_blocks(catch_up));
      waiting_ = !resolved;
      if (waiting_) return Progress::kLater;
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for a received message");
  }
  return stage_ == Stage::kComplete ? Progress::kComplete : Progress::kPart;
}

Message MessageReader::take() {
  stage_ = Stage::kIdle;
  list_.clear();
  if (list_.capacity() > kListKept) list_.shrink_to_fit();
  if (!lost_.ok()) message_.buffers.clear();
  lost_ = absl::OkStatus();
  return std::exchange(message_, Message());
}

MessageReader::Arriving MessageReader::arriving() {
  announced_ = true;
  Arriving message{message_.header, header_bytes_, header_bytes_ + filled_, 0};
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const uint64_t size = list_[i].size();
    message.bytes += size;
    if (list_[i].location() != BufferEntry::kFollows) {
      message.in_arena += size;
    } else if (i < buffer_index_) {
      message.arrived += size;
    }
  }
  message.arrived += message.in_arena;
  return message;
}

void MessageReader::reset() {
  take();
  has_blocks_ = false;
  resolved_ = 0;
  waiting_ = false;
}

absl::Status MessageReader::read_record(const RingConsumer& ring, const RecordWord& record) {
  if (record.length > ring.max_payload()) return malformed_record(record);
  switch (static_cast<RecordKind>(record.kind)) {
    case RecordKind::kMessage:
      return stage_ == Stage::kIdle ? read_message(ring, record) : malformed_record(record);
    case RecordKind::kStart:
      return stage_ == Stage::kIdle ? read_start(ring, record) : malformed_record(record);
    case RecordKind::kData:
      return stage_ != Stage::kIdle ? read_data(ring, record) : malformed_record(record);
  }
  return malformed_record(record);
}

absl::Status MessageReader::check_sizes(uint64_t header_bytes) const {
  MessageSizes sizes(message_limits_);
  GRADWIRE_RETURN_IF_ERROR(sizes.begin(header_bytes, list_.size()));
  for (const BufferEntry& entry : list_) {
    if (entry.location() > BufferEntry::kSentBack) {
      return absl::InvalidArgumentError(
          absl::StrCat("malformed list of buffers: got location ", entry.location(), ", expected 0, 1 or 2"));
    }
    GRADWIRE_RETURN_IF_ERROR(sizes.add(entry.size()));
  }
  return absl::OkStatus();
}

// A kMessage record consists of the list, the header and the small buffers. Their sizes come from the list,
// which is copied out first: the peer may change the ring at any time.
absl::Status MessageReader::read_message(const RingConsumer& ring, const RecordWord& record) {
  // The checks below are in this order, because each relies on the one before:
  // 1. The list is inside the record, whose length was checked by read_record().
  // 2. The buffers that follow are inside the rest; what remains is the header.
  // 3. All sizes are within the limits of a message. Only then memory is allocated for them.
  const std::size_t list_bytes = record.buffers * sizeof(BufferEntry);
  if (list_bytes > record.length) return malformed_record(record);
  list_.resize(record.buffers);
  if (record.buffers > 0) ring.copy_out(0, list_.data(), list_bytes);
  std::size_t following = 0;
  std::size_t aligned_bytes = 0;
  for (const BufferEntry& entry : list_) {
    if (entry.location() != BufferEntry::kFollows) {
      has_blocks_ = true;
      continue;
    }
    // Compare with the remaining bytes instead of adding sizes: a sum could overflow.
    if (entry.size() > record.length - list_bytes - following) return malformed_record(record);
    following += entry.size();
    aligned_bytes += aligned(entry.size());
  }
  const std::size_t header_bytes = record.length - list_bytes - following;
  GRADWIRE_RETURN_IF_ERROR(check_sizes(header_bytes));
  message_.header.resize(header_bytes);
  ring.copy_out(list_bytes, message_.header.data(), header_bytes);
  message_.buffers.resize(record.buffers);
  if (aligned_bytes > 0) read_small_buffers(ring, list_bytes + header_bytes, aligned_bytes);
  stage_ = Stage::kComplete;
  return absl::OkStatus();
}

// Copies the small buffers into one block of memory, which they share.
void MessageReader::read_small_buffers(const RingConsumer& ring, std::size_t offset, std::size_t bytes) {
  const absl::StatusOr<Buffer> allocated = pool_.allocate(bytes);
  if (!allocated.ok()) {
    lose(allocated.status());
    return;
  }
  const Buffer& memory = *allocated;
  char* to = static_cast<char*>(memory.data());
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const std::size_t size = list_[i].size();
    if (list_[i].location() != BufferEntry::kFollows || size == 0) continue;
    ring.copy_out(offset, to, size);
    message_.buffers[i] = Buffer(to, size, std::shared_ptr<void>(memory.owner(), to));
    offset += size;
    to += aligned(size);
  }
}

// Frees the memory of the buffers that have arrived. Their places in the list stay.
void MessageReader::lose(absl::Status reason) {
  lost_ = std::move(reason);
  for (Buffer& buffer : message_.buffers) buffer = Buffer();
}

absl::Status MessageReader::read_start(const RingConsumer& ring, const RecordWord& record) {
  uint64_t start[2];
  if (record.length != sizeof(start)) return malformed_record(record);
  ring.copy_out(0, start, sizeof(start));
  header_bytes_ = start[0];
  buffer_count_ = start[1];
  GRADWIRE_RETURN_IF_ERROR(MessageSizes(message_limits_).begin(header_bytes_, buffer_count_));
  list_.clear();
  announced_ = false;
  filled_ = 0;
  stage_ = Stage::kList;
  return next_stages();
}

// A kData record continues the stream at any byte: it may end inside the list, the header or a buffer, and
// may contain the end of one and the begin of the next.
absl::Status MessageReader::read_data(const RingConsumer& ring, const RecordWord& record) {
  if (record.length == 0) return malformed_record(record);
  std::size_t offset = 0;
  while (offset < record.length) {
    const std::size_t rest = record.length - offset;
    std::size_t part;
    switch (stage_) {
      case Stage::kList:
        // The list grows with the received bytes, not with the announced size.
        part = std::min<uint64_t>(rest, buffer_count_ * sizeof(BufferEntry) - filled_);
        list_.resize((filled_ + part + sizeof(BufferEntry) - 1) / sizeof(BufferEntry));
        ring.copy_out(offset, reinterpret_cast<char*>(list_.data()) + filled_, part);
        break;
      case Stage::kHeader:
        part = std::min<uint64_t>(rest, header_bytes_ - filled_);
        message_.header.resize(filled_ + part);
        ring.copy_out(offset, message_.header.data() + filled_, part);
        break;
      case Stage::kBuffers: {
        const Buffer& buffer = message_.buffers[buffer_index_];
        part = std::min<uint64_t>(rest, list_[buffer_index_].size() - filled_);
        if (lost_.ok()) ring.copy_out(offset, static_cast<char*>(buffer.data()) + filled_, part);
        break;
      }
      default:
        return malformed_record(record);
    }
    offset += part;
    filled_ += part;
    GRADWIRE_RETURN_IF_ERROR(next_stages());
  }
  return absl::OkStatus();
}

// Goes on to the next stage with missing bytes. Several stages may end at once, because the header and
// buffers may be empty.
absl::Status MessageReader::next_stages() {
  if (stage_ == Stage::kList) {
    if (filled_ < buffer_count_ * sizeof(BufferEntry)) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(check_sizes(header_bytes_));
    message_.buffers.resize(buffer_count_);
    for (const BufferEntry& entry : list_) has_blocks_ |= entry.location() != BufferEntry::kFollows;
    stage_ = Stage::kHeader;
    filled_ = 0;
  }
  if (stage_ == Stage::kHeader) {
    if (filled_ < header_bytes_) return absl::OkStatus();
    stage_ = Stage::kBuffers;
    filled_ = 0;
    buffer_index_ = 0;
  } else if (stage_ == Stage::kBuffers) {
    if (filled_ < list_[buffer_index_].size()) return absl::OkStatus();
    ++buffer_index_;
    filled_ = 0;
  }
  // Skip the buffers without bytes in the stream: those in the arena and the empty ones.
  while (buffer_index_ < list_.size() &&
         (list_[buffer_index_].location() != BufferEntry::kFollows || list_[buffer_index_].size() == 0)) {
    ++buffer_index_;
  }
  if (buffer_index_ == list_.size()) {
    stage_ = Stage::kComplete;
    return absl::OkStatus();
  }
  if (!lost_.ok()) return absl::OkStatus();
  absl::StatusOr<Buffer> buffer = pool_.allocate(list_[buffer_index_].size());
  if (buffer.ok()) {
    message_.buffers[buffer_index_] = *std::move(buffer);
  } else {
    lose(buffer.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MessageReader::resolve_blocks(CatchUp catch_up) {
  // Announcements of segments come through the socket and may be read after the message. Read the socket
  // once; if the segment is still unknown, take() returns an error, unless the socket could not be read to
  // its end.
  bool caught_up = false;
  bool all = true;
  for (; resolved_ < list_.size(); ++resolved_) {
    const BufferEntry& entry = list_[resolved_];
    Buffer& buffer = message_.buffers[resolved_];
    if (entry.location() == BufferEntry::kSentBack) {
      GRADWIRE_ASSIGN_OR_RETURN(buffer, take_back(entry));
      continue;
    }
    if (entry.location() != BufferEntry::kInArena) continue;
    if (!caught_up && !arena_.knows(entry.block)) {
      GRADWIRE_ASSIGN_OR_RETURN(all, catch_up());
      caught_up = true;
    }
    if (!all && !arena_.knows(entry.block)) return false;
    absl::StatusOr<Buffer> block = arena_.take(entry.block, entry.size(), pool_);
    if (block.ok()) {
      buffer = *std::move(block);
    } else if (is_local_shortage(block.status())) {
      lose(block.status());
    } else {
      return block.status();
    }
  }
  has_blocks_ = false;
  resolved_ = 0;
  return true;
}

absl::StatusOr<Buffer> MessageReader::take_back(const BufferEntry& entry) {
  if (absl::optional<Buffer> buffer = own_arena_->take_back(entry.block, entry.size())) {
    return *std::move(buffer);
  }
  const BlockName block = BlockName::decode(entry.block);
  return absl::InvalidArgumentError(
      absl::StrCat("the peer sends back an arena block that it does not use: index ", block.index,
                   " of segment ", block.segment, ", ", entry.size(), " bytes"));
}

}  // namespace gradwire::transport
