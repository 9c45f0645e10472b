#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace gradwire {

namespace security {
class Secret;
}

// A secret text among options. Copies share one place in memory, which is wiped when the last of them ends. A
// text that it is made of remains with the caller, who may wipe it (security/secret.h).
class SecretOption {
 public:
  // An empty secret.
  SecretOption() = default;
  // Copies the text.
  SecretOption(const char* text);
  SecretOption(const std::string& text);  // As the first one.
  // Copies the text, then wipes it.
  SecretOption(std::string&& text);
  // Shares the secret.
  SecretOption(const security::Secret& secret);

  // The secret itself.
  security::Secret secret() const;
  // Whether there is no secret.
  bool empty() const { return secret_ == nullptr; }

  // Takes a time that depends on the sizes only.
  friend bool operator==(const SecretOption& a, const SecretOption& b);

 private:
  // nullptr for an empty secret.
  std::shared_ptr<const security::Secret> secret_;
};

// How a process proves that it belongs to a job, and what it demands of others (docs/security.md). All
// processes of a job use the same kind: a token, or certificates. Without either, connections stay on this
// host.
//
// An option that is empty is taken from the environment, where the launcher puts it (docs/environment.md).
struct SecurityOptions {
  // The job's token: a secret of at least 32 bytes that all processes of the job know. It never travels.
  // Connections are authenticated, not encrypted. Give it here or in a file that only its owner can read.
  SecretOption token;
  std::string token_file;
  // TLS 1.3, with the certificate of this process, its key, and the authority that signed the certificates of
  // the job (PEM). The certificate names the worker: a subject alternative name "URI:gradwire://JOB/NAME".
  // Files that change are read again. All three or none; not together with a token.
  std::string certificate_file;
  std::string key_file;
  std::string authority_file;
  // The job to which this process belongs. If it is set, a certificate of another job is refused at the
  // start. Has no meaning for a token.
  std::string job;
  // The rules that say which worker may call which function (docs/security.md). Empty: the members of the
  // group may call what is registered. The file is read again when it changes.
  std::string policy_file;
  // No proof is asked for or given, also on the network. For networks in which every process is trusted.
  bool insecure = false;
  // Whether a token's handshake covers the addresses that both ends see. Turn it off if the connections pass
  // through a translation of addresses (NAT).
  bool check_addresses = true;
  // The users of this host, beside that of this process, whose processes may connect through shared memory.
  std::vector<uid_t> allowed_users;
};

}  // namespace gradwire
