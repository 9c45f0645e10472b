#pragma once

#include <string>

namespace gradwire::tools {

// How the processes of the job prove that they belong to it, as the launcher's options say.
struct LaunchSecurity {
  enum class Kind {
    // This launcher makes a random token for the job, which has one node.
    kNewToken,
    // The token in `token_file`; if that is empty, the token that this launcher itself has inherited.
    kToken,
    // The certificates in the files below.
    kCertificates,
    // --secure: this launcher makes an authority and certificates for the job, which has one node.
    kNewCertificates,
    // --insecure: nobody proves anything, and the job's ports are open.
    kInsecure,
    // Nothing is given, but all nodes are on this host: the processes of the job accept no other hosts.
    kThisHost,
  };

  Kind kind = Kind::kNewToken;
  std::string token_file;
  // The launcher's own certificate and key, and the authority of the job.
  std::string certificate_file;
  std::string key_file;
  std::string authority_file;
  // Those of the workers: patterns, as in name_pattern.h. If empty, the launcher's own.
  std::string worker_certificate_file;
  std::string worker_key_file;
  // The name of each worker: a pattern. If empty, the workers are not given a name.
  std::string worker_name;
  // As TcpStoreOptions::allow_unauthenticated_pytorch, for the stores that the launcher serves.
  bool allow_unauthenticated_pytorch = false;
};

}  // namespace gradwire::tools
