#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/store/interface/limits.h"

// The protocol of torch.distributed's TCPStore (c10d::TCPStore of PyTorch 2.11), which a TcpStore's server
// and client also speak.
//
// The client sends queries, one byte each, with their fields. Integers are little-endian. A string is its
// length, in 8 bytes, and its bytes. A list is its length, in 8 bytes, and its strings; that of kMultiSet has
// a key and a value in turn.
//
//   query        fields                     answer
//   kValidate    magic (4 bytes)            none; must be the first, and only the first
//   kSet         key, value                 none
//   kCompareSet  key, expected, desired     the value that the key then has
//   kGet         key                        the value; empty if the key is missing
//   kAdd         key, n (8 bytes)           the sum (8 bytes)
//   kCheck       list of keys               0: all exist; 1 (1 byte)
//   kWait        list of keys               0, when all exist (1 byte)
//   kNumKeys                                the number (8 bytes)
//   kDeleteKey   key                        the number of deleted keys (8 bytes)
//   kAppend      key, value                 none
//   kMultiGet    list of keys               each value
//   kMultiSet    list of keys and values    none
//   kCancelWait                             1 (1 byte); ends a kWait, which is not answered any more
//   kPing        nonce (4 bytes)            the nonce
//   kQueuePush   queue, value               none
//   kQueuePop    queue                      the length before (8 bytes), and the item unless that is 0
//   kQueueLen    queue                      the length (8 bytes)
//   kListKeys                               list of keys
//
// A server without libuv does not know the queries of queues. There are no error answers: the server closes
// the connection. A client gets a key by kWait and then kGet, and pops an item by kWait and then kQueuePop.
// It gives up a wait by kCancelWait.
//
// Clients put "/" before each key of a user, and each queue. The one other key is kWorkersKey, to which each
// client of a job of known size adds 1.
namespace gradwire::store {

enum class C10dQuery : uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
};

inline constexpr uint32_t kC10dMagic = 0x3C85F7CE;
// The first bytes of a connection: kValidate and the magic.
inline constexpr absl::string_view kC10dGreeting("\0\xCE\xF7\x85\x3C", 5);
inline constexpr absl::string_view kC10dWorkersKey = "init/";
inline constexpr char kC10dKeyPrefix = '/';

// Answers to kCheck, kWait and kCancelWait.
inline constexpr char kC10dReady = 0;
inline constexpr char kC10dNotReady = 1;
inline constexpr char kC10dStopWaiting = 0;
inline constexpr char kC10dWaitCancelled = 1;

// A server of Gradwire answers this nonce with its complement, so that a client finds out whether the server
// is one. PyTorch's clients send the number of their process, which is smaller.
inline constexpr uint32_t kC10dGradwireNonce = 0x77777367;

// Limits of what the server accepts. A list has at most kMaxKeysPerWait entries.
inline constexpr std::size_t kMaxC10dKeyBytes = kMaxKeyBytes + 1;
inline constexpr std::size_t kMaxC10dListBytes = kMaxMultiBytes + kMaxKeysPerWait;

// Limits of PyTorch's server. It closes the connection of a client that exceeds one.
inline constexpr std::size_t kTorchMaxStringBytes = std::size_t{8} << 10;
inline constexpr std::size_t kTorchMaxPayloadBytes = std::size_t{8} << 20;

// Appends a field.
inline void put_c10d_number(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}
inline void put_c10d_string(std::string& bytes, absl::string_view value) {
  put_c10d_number(bytes, value.size(), 8);
  bytes.append(value.data(), value.size());
}
inline void put_c10d_key(std::string& bytes, absl::string_view key) {
  put_c10d_number(bytes, key.size() + 1, 8);
  bytes.push_back(kC10dKeyPrefix);
  bytes.append(key.data(), key.size());
}

inline uint64_t load_c10d_number(absl::string_view bytes) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

}  // namespace gradwire::store
