#include <random>
#include <string>

#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/token/record.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

// One of the values, mostly the first.
std::string one_of(std::mt19937& random, const std::string& usual, const std::string& other) {
  return random() % 6 == 0 ? other : usual;
}

// The terms of a peer of the end in token_handshake_fuzzer.cc, mostly valid.
std::string random_terms(std::mt19937& random) {
  proto::HandshakeEnd end;
  end.set_version(random() % 8 == 0 ? random() % 3 : 1);
  end.set_purpose(one_of(random, "rpc", random() % 2 == 0 ? "store" : std::string(33, 'p')));
  end.set_name(one_of(random, "peer", random() % 2 == 0 ? std::string(256, 'n') : "\n"));
  end.set_nonce(one_of(random, std::string(32, 'P'), std::string(31 + random() % 3, 'N')));
  end.set_own_address(one_of(random, "10.0.0.2:5000", "10.0.0.3:5000"));
  end.set_peer_address(one_of(random, "10.0.0.1:80", std::string(random() % 70, '1')));
  end.set_check_addresses(random() % 2 == 0);
  return end.SerializeAsString();
}

std::string choice(int bits) { return std::string(1, static_cast<char>(bits)); }

TEST(TokenHandshakeFuzzer, MembersAreAcceptedByTheSpecification) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string terms = random_terms(random);
    if (random() % 2 == 0) fuzzing::mutate(terms, random);
    fuzzing::run(choice(2 + static_cast<int>(random() % 2) + 4 * static_cast<int>(random() % 2)) + terms);
  }
}

// The stream of a peer that has another token.
std::string random_stream(std::mt19937& random, bool to_server) {
  proto::HandshakeProof proof;
  proof.set_proof(fuzzing::random_bytes(32, random));
  if (to_server) {
    return Record{Record::Kind::kHello, random_terms(random)}.encode() +
           Record{Record::Kind::kProof, proof.SerializeAsString()}.encode();
  }
  proto::HandshakeChallenge challenge;
  challenge.set_terms(random_terms(random));
  challenge.set_proof(proof.proof());
  return Record{Record::Kind::kChallenge, challenge.SerializeAsString()}.encode() +
         Record{Record::Kind::kWelcome, ""}.encode();
}

TEST(TokenHandshakeFuzzer, StrangersAreRefused) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const bool to_server = random() % 2 == 0;
    std::string stream = random_stream(random, to_server);
    if (random() % 10 == 0) stream = Record::refusal(fuzzing::random_bytes(random() % 600, random)).encode();
    fuzzing::mutate(stream, random);
    fuzzing::run(choice((to_server ? 1 : 0) + 4 * static_cast<int>(random() % 2)) + stream);
  }
}

}  // namespace
}  // namespace gradwire::security
