#include "gradwire/security/authority/job_authority.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <string>

#include "absl/time/clock.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, OpenSslFree<X509_STORE_CTX_free>>;

CertificatePtr certificate_of(const std::string& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CertificatePtr certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  EXPECT_NE(certificate, nullptr) << pem;
  return certificate;
}

KeyPtr key_of(const Secret& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.reveal().data(), static_cast<int>(pem.size())));
  return KeyPtr(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

// OpenSSL's verdict about a certificate at a time, for one of the roles of a connection.
int verify(X509* certificate, const JobAuthority& authority, absl::Time time, const char* role) {
  const AuthoritiesPtr trusted(X509_STORE_new());
  const CertificatePtr root = certificate_of(authority.certificate());
  X509_STORE_add_cert(trusted.get(), root.get());
  const StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), trusted.get(), certificate, nullptr);
  X509_STORE_CTX_set_default(context.get(), role);
  X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(context.get()), X509_V_FLAG_X509_STRICT);
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), absl::ToTimeT(time));
  X509_verify_cert(context.get());
  return X509_STORE_CTX_get_error(context.get());
}

TEST(JobAuthority, IssuesCertificatesForBothEndsOfAConnection) {
  const absl::StatusOr<JobAuthority> authority = JobAuthority::create("job.1", absl::Hours(1));
  ASSERT_TRUE(authority.ok()) << authority.status();
  const absl::StatusOr<JobAuthority::Identity> identity = authority->issue("trainer:3");
  ASSERT_TRUE(identity.ok()) << identity.status();
  const CertificatePtr certificate = certificate_of(identity->certificate);
  const absl::StatusOr<PeerIdentity> worker = worker_of(certificate.get());
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->job, "job.1");
  EXPECT_EQ(worker->name, "trainer:3");
  const KeyPtr key = key_of(identity->key);
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(X509_check_private_key(certificate.get(), key.get()), 1);
  for (const char* role : {"ssl_client", "ssl_server"}) {
    EXPECT_EQ(verify(certificate.get(), *authority, absl::Now(), role), X509_V_OK) << role;
  }
}

TEST(JobAuthority, CertificatesEndWithTheAuthority) {
  const JobAuthority authority = *JobAuthority::create("job", absl::Hours(1));
  const CertificatePtr certificate = certificate_of(authority.issue("a")->certificate);
  const auto at = [&](absl::Duration time) {
    return verify(certificate.get(), authority, absl::Now() + time, "ssl_client");
  };
  EXPECT_EQ(at(absl::Minutes(50)), X509_V_OK);
  EXPECT_EQ(at(absl::Minutes(70)), X509_V_ERR_CERT_HAS_EXPIRED);
  EXPECT_EQ(at(-absl::Minutes(4)), X509_V_OK);
  EXPECT_EQ(at(-absl::Minutes(10)), X509_V_ERR_CERT_NOT_YET_VALID);
}

TEST(JobAuthority, EachHasAKeyOfItsOwn) {
  const JobAuthority one = *JobAuthority::create("job", absl::Hours(1));
  const JobAuthority other = *JobAuthority::create("job", absl::Hours(1));
  const JobAuthority::Identity first = *one.issue("a"), second = *one.issue("a");
  EXPECT_FALSE(first.key == second.key);
  const CertificatePtr certificate = certificate_of(first.certificate);
  EXPECT_NE(verify(certificate.get(), other, absl::Now(), "ssl_client"), X509_V_OK);
  // A worker cannot sign certificates for others.
  EXPECT_EQ(X509_check_ca(certificate.get()), 0);
}

TEST(JobAuthority, NamesAreChecked) {
  EXPECT_EQ(JobAuthority::create("a/b", absl::Hours(1)).status().code(), absl::StatusCode::kInvalidArgument);
  const JobAuthority authority = *JobAuthority::create("job", absl::Hours(1));
  for (const char* name : {"", "a,URI:gradwire://job/b", "a/b"}) {
    EXPECT_EQ(authority.issue(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace gradwire::security
