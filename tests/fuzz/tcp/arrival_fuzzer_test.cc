#include <random>
#include <string>

#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/token/record.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::Record;

// The demanded proof, and the size of the pieces.
std::string head(std::mt19937& random) {
  return {static_cast<char>(random() % 3), static_cast<char>(random() % 4 == 0 ? random() % 10 : 255)};
}

std::string random_preface(std::mt19937& random) {
  Preface preface{.proof = static_cast<Preface::Proof>(random() % 3), .token = {random() % 3, random() % 3}};
  if (random() % 5 == 0) {
    preface.kind = Preface::Kind::kStripe;
    preface.proof = Preface::Proof::kNone;
    preface.stripe = preface.stripes = 1;
  }
  return preface.encode();
}

// The bytes behind the preface, of a process that does not know the token and has no certificate.
std::string random_rest(std::mt19937& random) {
  switch (random() % 5) {
    case 0: {
      proto::HandshakeEnd end;
      end.set_version(1 + static_cast<uint32_t>(random() % 2));
      end.set_purpose(random() % 3 == 0 ? "store" : "rpc");
      end.set_nonce(std::string(32, 'n'));
      proto::HandshakeProof proof;
      proof.set_proof(fuzzing::random_bytes(32, random));
      return Record{Record::Kind::kHello, end.SerializeAsString()}.encode() +
             Record{Record::Kind::kProof, proof.SerializeAsString()}.encode();
    }
    case 1: {
      Message message;
      message.header = std::string(random() % 50, 'h');
      return encode_frame_start(message) + message.header;
    }
    case 2:
      // The head of a ClientHello.
      return std::string("\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03", 11) +
             fuzzing::random_bytes(random() % 80, random);
    case 3:
      return Record::refusal("no").encode();
    default:
      return fuzzing::random_bytes(random() % 200, random);
  }
}

TEST(ArrivalFuzzer, ProcessesWithoutCredentialsGetNoConnection) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = random_preface(random) + random_rest(random);
    if (random() % 2 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(head(random) + bytes);
  }
}

TEST(ArrivalFuzzer, GarbageGetsNoConnection) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    fuzzing::run(head(random) + fuzzing::random_bytes(random() % 60, random));
  }
}

}  // namespace
}  // namespace gradwire::transport
