#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gradwire/rpc/agent.h"
#include "gradwire/security/credentials.h"

namespace gradwire::bench {

// The attacks of the benchmark "attacked_caller". Each lasts until `stop`, runs on the thread that calls it,
// and counts what it has opened or sent. `address`: "127.0.0.1:port" of the attacked worker.

// Opens sockets as fast as possible, as many at once as the process may have, from many addresses of the
// loopback interface. Replaces each that the worker closes.
void open_crowd(const std::string& address, const std::atomic<bool>& stop, std::atomic<int64_t>& count);

// Keeps 512 sockets open, which say that they have a token, and send one byte of the handshake each second.
// Replaces each that the worker closes.
void open_slowly(const std::string& address, const std::atomic<bool>& stop, std::atomic<int64_t>& count);

// Opens connections with a proof and a Hello in the name of `self`, sends calls of the function
// "gradwire::bench::large_answer" on each of them, and reads no answer. Replaces each that the worker closes.
// `callee`: the incarnation of the worker.
struct MuteCaller {
  const rpc::Agent& self;
  uint64_t callee = 0;
  security::CredentialsPtr credentials;
  std::string function;
  uint64_t signature = 0;
};
void call_without_reading(const std::string& address, const MuteCaller& caller, const std::atomic<bool>& stop,
                          std::atomic<int64_t>& count);

}  // namespace gradwire::bench
