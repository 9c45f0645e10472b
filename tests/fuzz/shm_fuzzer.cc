#include "gradwire/tests/fuzz/shm_fuzzer.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kRing = kMinRingBytes;
// Number of polls within which a connection must end after its other end has closed.
constexpr int kPollsToEnd = 10'000;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "shm fuzzer: %s\n", what);
  std::abort();
}

// Small limits, so that lengths fall on both sides of them.
ShmOptions small_options() {
  ShmOptions options;
  options.limits.max_header_bytes = 20'000;
  options.limits.max_buffers = 100;
  options.limits.max_buffer_bytes = 100'000;
  options.limits.max_message_bytes = 200'000;
  options.ring_bytes = kRing;
  options.max_ring_buffer_bytes = 512;
  options.max_arena_bytes = std::size_t{4} << 20;
  return options;
}

// Keeps some of the received messages, and checks all of them.
class Keeper : public ConnectionListener {
 public:
  void on_message(Connection&, Message message) override {
    const Limits limits = small_options().limits;
    require(!closed, "a message after the end");
    require(message.header.size() <= limits.max_header_bytes &&
                message.buffers.size() <= limits.max_buffers &&
                message.byte_size() <= limits.max_message_bytes,
            "a message over the limits was delivered");
    for (const Buffer& buffer : message.buffers) {
      require(buffer.size() <= limits.max_buffer_bytes, "a buffer over the limits was delivered");
      require(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0, "a buffer is not aligned");
      // The whole buffer must be writable.
      if (buffer.size() > 0) std::memset(buffer.data(), 0x5a, buffer.size());
    }
    if (kept.size() < 20) kept.push_back(std::move(message));
  }
  void on_closed(Connection&, absl::Status reason) override {
    require(!closed, "closed twice");
    require(reason.code() == absl::StatusCode::kInvalidArgument ||
                reason.code() == absl::StatusCode::kUnavailable,
            "closed for another reason");
    closed = true;
  }

  std::vector<Message> kept;
  bool closed = false;
};

// A listening transport, driven only by this thread.
struct World {
  World() : loop(*EventLoop::create()), transport(make_shm_transport(small_options(), loop)) {
    auto listening = transport->listen([this](const std::shared_ptr<Connection>& accepted) {
      connection = accepted;
      return keeper;
    });
    require(listening.ok(), "cannot listen");
    address = *listening;
  }

  void drive(int polls) {
    require(loop->try_enter(), "another thread drives the loop");
    for (int i = 0; i < polls; ++i) loop->poll();
    loop->leave();
  }

  // Returns a peer that has finished its handshake; `connection` is the other end.
  std::unique_ptr<RawPeer> connect() {
    keeper = std::make_shared<Keeper>();
    auto peer = std::make_unique<RawPeer>(address);
    peer->send_hello(kRing, std::size_t{4} << 20);
    for (int i = 0; i < kPollsToEnd && connection == nullptr; ++i) drive(1);
    require(connection != nullptr && peer->receive(), "no connection");
    return peer;
  }

  void disconnect(RawPeer& peer) {
    peer.close();
    for (int i = 0; i < kPollsToEnd && !keeper->closed; ++i) drive(1);
    require(keeper->closed, "the connection does not end");
    connection.reset();
    // Received messages outlive the connection.
    for (const Message& message : keeper->kept) {
      for (const Buffer& buffer : message.buffers) {
        if (buffer.size() > 0) std::memset(buffer.data(), 1, buffer.size());
      }
    }
  }

  const std::shared_ptr<EventLoop> loop;
  const std::unique_ptr<Transport> transport;
  std::string address;
  std::shared_ptr<Keeper> keeper;
  std::shared_ptr<Connection> connection;
};

World& world() {
  static World* const instance = new World;
  return *instance;
}

// Splits the input into numbers and texts; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }

  uint64_t take(std::size_t bytes) {
    uint64_t value = 0;
    const std::size_t part = std::min(bytes, size_);
    std::memcpy(&value, data_, part);
    data_ += part;
    size_ -= part;
    return value;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)); }
  std::string text(std::size_t bytes) {
    std::string result(bytes, 'x');
    const std::size_t part = std::min(bytes, size_);
    std::memcpy(result.data(), data_, part);
    data_ += part;
    size_ -= part;
    return result;
  }
  // Mostly small numbers, and some at the ends of the range.
  uint64_t number() {
    switch (byte() % 6) {
      case 0:
        return take(8);
      case 1:
        return ~uint64_t{0} - byte();
      case 2:
        return take(3);
      case 3:
        return uint64_t{1} << (byte() % 64);
      default:
        return byte();
    }
  }

 private:
  const uint8_t* data_;
  std::size_t size_;
};

void write_word(const SharedMemory& memory, std::size_t offset, uint64_t value) {
  if (memory.size() < 16) return;
  shared_word<uint64_t>(memory.data() + offset % (memory.size() - 8) / 8 * 8).store(value);
}

Message some_message(Input& input) {
  Message message;
  message.header.assign(input.number() % 20'000, 'h');
  for (int buffers = input.byte() % 4; buffers > 0; --buffers) {
    const std::size_t size = input.number() % 60'000;
    auto memory = std::make_shared<std::string>(size, 'b');
    message.buffers.emplace_back(memory->data(), size, memory,
                                 size % 2 == 0 ? Buffer::Sharing::kOwned : Buffer::Sharing::kBorrowed);
  }
  return message;
}

// Writes a record that is valid or nearly valid.
void put_record(RawPeer& peer, Input& input) {
  if (peer.own_ring().size() == 0) return;
  std::string payload;
  const uint8_t what = input.byte();
  uint32_t buffers = 0;
  if (what % 4 == 0) {
    payload = start_of(input.number(), input.number());
    peer.put_record(RecordKind::kStart, 0, payload);
    return;
  }
  for (int i = input.byte() % 4; i > 0; --i) {
    ++buffers;
    const uint64_t size = input.number();
    const BlockName block{static_cast<uint32_t>(input.byte() % 4), static_cast<uint32_t>(input.number())};
    payload += list_entry(size & 0xffff, input.byte() % 4, block.encode());
  }
  payload += input.text(input.number() % 700);
  const RecordKind kind = what % 4 == 1 ? RecordKind::kData : RecordKind::kMessage;
  if (what % 16 == 15) {
    peer.put_record(static_cast<uint8_t>(kind),
                    static_cast<uint32_t>(input.number()) & RecordWord::kMaxBuffers,
                    static_cast<uint32_t>(input.number()), payload);
  } else {
    peer.put_record(kind, kind == RecordKind::kMessage ? buffers : 0, payload);
  }
}

void send_segment(RawPeer& peer, Input& input) {
  SegmentPacket packet;
  packet.segment = input.byte() % 4;
  packet.block_bytes = 64 * (1 + input.byte());
  packet.blocks = 1 + input.byte() % 16;
  const std::size_t bytes = (packet.block_bytes + kLineBytes) * packet.blocks;
  packet.bytes = bytes;
  Descriptor memory;
  if (!SharedMemory::create(bytes, false, memory).ok()) return;
  switch (input.byte() % 8) {
    case 0:
      packet.bytes = input.number();
      break;
    case 1:
      packet.blocks = input.number();
      break;
    case 2:
      packet.block_bytes = input.number();
      break;
    case 3:
      peer.send(packet, {memory.get(), memory.get()});
      return;
    default:
      break;
  }
  peer.send(packet, {memory.get()});
}

void act(World& w, RawPeer& peer, Input& input) {
  switch (input.byte() % 14) {
    case 0:
      w.drive(1 + input.byte() % 8);
      break;
    case 1:
    case 2:
    case 3:
      put_record(peer, input);
      break;
    case 4: {
      const auto ticket = w.connection->send(some_message(input));
      if (ticket.ok()) w.connection->capture(*ticket);
      break;
    }
    case 5:
      write_word(peer.own_ring(), input.number(), input.number());
      break;
    case 6:
      write_word(peer.other_ring(), input.number(), input.number());
      break;
    case 7:
      // The words for the tail, `armed` and `room`.
      write_word(peer.other_ring(), input.byte() % 3 * 128, input.number());
      break;
    case 8:
      send_segment(peer, input);
      break;
    case 9: {
      DropPacket drop;
      drop.segment = input.byte() % 4;
      peer.send(drop);
      break;
    }
    case 10:
      peer.ring();
      break;
    case 11: {
      const std::string bytes = input.text(1 + input.byte() % 70);
      if (input.byte() % 4 == 0) peer.send(bytes.data(), bytes.size());
      break;
    }
    case 12:
      while (peer.receive()) {
      }
      for (const SharedMemory& segment : peer.other_segments()) {
        for (int i = 0; i < 4; ++i) write_word(segment, input.number(), input.number());
        // Sets all marks.
        if (input.byte() % 2 == 0) std::memset(segment.data(), 1, segment.size());
      }
      break;
    case 13:
      if (!w.keeper->kept.empty()) w.keeper->kept.erase(w.keeper->kept.begin());
      break;
  }
}

}  // namespace
}  // namespace gradwire::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gradwire::transport;
  World& w = world();
  const std::unique_ptr<RawPeer> peer = w.connect();
  Input input(data, size);
  while (!input.empty() && !w.keeper->closed) act(w, *peer, input);
  w.drive(3);
  w.disconnect(*peer);
  return 0;
}

void run_shm_storm(unsigned seed) {
  using namespace gradwire::transport;
  World& w = world();
  const std::unique_ptr<RawPeer> peer = w.connect();
  std::atomic<bool> stop{false};
  const bool gentle = seed % 2 == 0;
  const SharedMemory own_ring = peer->second_mapping_of_own_ring();
  std::thread storm([&] {
    std::mt19937_64 random(seed);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t value = random() % 3 == 0 ? random() : random() % 4;
      if (gentle) {
        // The records are valid, but their bytes after the first word change while they are read.
        write_word(own_ring, (kLinesOffset + random() % kRing / 64 * 64) + 8 + random() % 7 * 8, value);
        if (random() % 8 == 0) write_word(peer->other_ring(), 128 * (1 + random() % 2), random() % 2);
      } else {
        write_word(own_ring, random(), value);
        write_word(peer->other_ring(), random(), value);
      }
    }
  });
  std::mt19937_64 random(seed + 1);
  for (int step = 0; step < 300 && !w.keeper->closed; ++step) {
    uint8_t bytes[64];
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    Input input(bytes, sizeof(bytes));
    if (gentle) {
      if (step % 3 == 0) {
        const auto ticket = w.connection->send(some_message(input));
        if (ticket.ok()) w.connection->capture(*ticket);
      } else {
        put_record(*peer, input);
      }
    } else {
      act(w, *peer, input);
    }
    w.drive(2);
  }
  stop = true;
  storm.join();
  w.disconnect(*peer);
}
