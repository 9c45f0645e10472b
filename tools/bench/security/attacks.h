#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/security/credentials.h"

namespace gradwire::bench {

// One attack of the benchmark "attacked_caller". It lasts until `stop`, runs on the thread that calls it, and
// counts what it has opened or sent.
struct Attack {
  // "127.0.0.1:port" of the attacked worker.
  std::string address;
  // Connections or calls in a second; 0: as many as possible.
  int64_t rate = 0;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> count{0};
};

// Opens sockets from many addresses of the loopback interface, and keeps as many as the process may have, but
// at most 10,000. Replaces each that the worker closes.
void open_crowd(Attack& attack);

// Keeps 512 sockets open, which say that they have a token, and send one byte of the handshake each second.
// Replaces each that the worker closes, whatever the rate.
void open_slowly(Attack& attack);

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
void call_without_reading(Attack& attack, const MuteCaller& caller);

}  // namespace gradwire::bench
