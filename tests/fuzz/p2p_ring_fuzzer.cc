// Depending on its first byte, the input is used in one of two ways (collectives/cpu/shm_p2p/p2p_ring.h): as
// the words that a hostile writer stores in the cells of a ring, 56 bytes for each cell behind the stamp; or
// as the actions of a hostile reader, against which a writer must keep its bounds.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::collectives::cpu::FrameKind;
using gradwire::collectives::cpu::kRingCells;
using gradwire::collectives::cpu::kRingPieceBytes;
using gradwire::collectives::cpu::P2pRing;
using gradwire::collectives::cpu::P2pRingReader;
using gradwire::collectives::cpu::P2pRingWriter;
using gradwire::collectives::cpu::RingRecord;
using gradwire::fuzzing::Input;
using gradwire::fuzzing::require;

constexpr std::size_t kDataBytes = 4 * kRingPieceBytes;

// The memory of a ring. The bytes behind it must not be used.
struct Memory {
  Memory() : bytes(new Aligned[P2pRing::bytes(kDataBytes) / sizeof(Aligned) + 1]()) {}
  char* begin() const { return bytes.get()->bytes; }
  char* data() const { return begin() + sizeof(P2pRing::Head) + kRingCells * sizeof(P2pRing::Cell); }
  P2pRing::Cell& cell(uint64_t number) const {
    return reinterpret_cast<P2pRing::Cell*>(begin() + sizeof(P2pRing::Head))[number % kRingCells];
  }
  P2pRing::Head& head() const { return *reinterpret_cast<P2pRing::Head*>(begin()); }

  struct alignas(128) Aligned {
    char bytes[128];
  };
  const std::unique_ptr<Aligned[]> bytes;
};

// Checks the parsed record against the words of its cell, by the comments of p2p_ring.h and frame.h.
void check_record(const uint64_t (&words)[8], const absl::StatusOr<RingRecord>& record,
                  const Memory& memory) {
  const uint64_t kind = words[1] & 0xff;
  const uint64_t bytes = words[1] >> 32;
  const bool carries = kind == 3 || kind == 7;
  const bool in_cell = kind == 3 && bytes <= 40;
  bool valid = kind >= 3 && kind <= 11 && kind != 10;
  if (valid && !in_cell && bytes > 0)
    valid = carries && bytes <= 16'384 && words[5] <= kDataBytes && words[5] + bytes <= kDataBytes;
  require(record.ok() == valid, "a record is accepted or refused wrongly");
  if (!valid) {
    require(absl::IsInvalidArgument(record.status()), "an error that is not InvalidArgument");
    return;
  }
  require(static_cast<uint64_t>(record->kind) == kind && record->code == ((words[1] >> 8) & 0xff) &&
              static_cast<uint64_t>(record->tag) == words[2],
          "wrong fields");
  require(record->size == (carries ? bytes : words[3]), "the wrong size");
  if (!in_cell) require(record->id == words[4], "the wrong id");
  if (!carries || bytes == 0) return;
  const char* const low = in_cell ? memory.begin() : memory.data();
  const char* const high = in_cell ? memory.data() : memory.data() + kDataBytes;
  require(record->payload >= low && record->payload + bytes <= high, "a payload outside of the ring");
}

void read_from_hostile_writer(Input& input) {
  const Memory memory;
  P2pRingReader reader(P2pRing(memory.begin(), kDataBytes));
  for (uint64_t number = 0; !input.empty() && number < 2 * kRingCells; ++number) {
    uint64_t words[8] = {};
    for (int i = 1; i < 8; ++i) words[i] = input.number(8);
    for (int i = 1; i < 8; ++i) memory.cell(number).words[i].store(words[i]);
    require(!reader.has_record(), "a cell without its stamp is taken for a record");
    memory.cell(number).words[0].store(number + 1);
    require(reader.has_record(), "a cell with its stamp is not taken for a record");
    const absl::StatusOr<RingRecord> record = reader.peek();
    check_record(words, record, memory);
    if (!record.ok()) return;
    reader.release(*record);
  }
}

// The writer must write only into the ring, regardless of what the reader stores in `consumed`. As long as
// the reader is honest, the writer must not overwrite unread data.
void write_to_hostile_reader(Input& input) {
  const Memory memory;
  P2pRingWriter writer(P2pRing(memory.begin(), kDataBytes));
  const std::string payload(kRingPieceBytes, 'p');
  struct Unread {
    uint64_t number, position, size;
  };
  std::vector<Unread> unread;
  uint64_t written = 0;
  uint64_t consumed_so_far = 0;
  bool lied = false;
  while (!input.empty() && !writer.corrupt()) {
    const uint64_t step = input.number(1);
    if (step % 4 == 0) {
      const uint64_t consumed =
          step < 128 ? consumed_so_far + std::min(step / 4, written - consumed_so_far) : input.number(8);
      lied = lied || consumed < consumed_so_far || consumed > written;
      if (!lied) consumed_so_far = consumed;
      memory.head().consumed.store(consumed);
      continue;
    }
    const std::size_t size = input.number(2) % (kRingPieceBytes + 1);
    if (!writer.fits(size)) continue;
    require(lied || written - consumed_so_far < kRingCells, "an unread cell is overwritten");
    writer.write({.kind = FrameKind::kData, .size = size, .id = 1, .payload = payload.data()});
    require(memory.cell(written).words[0].load() == written + 1, "a record is in the wrong cell");
    // A record without a payload leaves the position of an earlier one in the cell.
    const uint64_t position = size > 0 ? memory.cell(written).words[5].load() : 0;
    require(position + size <= kDataBytes, "a payload is written outside of the ring");
    // Data that an honest reader has not released must not change.
    std::erase_if(unread, [consumed_so_far](const Unread& each) { return each.number < consumed_so_far; });
    for (const Unread& each : unread) {
      require(lied || size == 0 || position + size <= each.position || each.position + each.size <= position,
              "an unread payload is overwritten");
    }
    if (size > 0) unread.push_back({written, position, size});
    ++written;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Input input(data, size);
  if (input.number(1) % 2 == 0) {
    read_from_hostile_writer(input);
  } else {
    write_to_hostile_reader(input);
  }
  return 0;
}
