#include "gradwire/security/tls/buffer_bio.h"

#include <algorithm>

namespace gradwire::security {
namespace {

int bio_read(BIO* bio, char* to, size_t size, size_t* count) {
  BIO_clear_retry_flags(bio);
  BioEnds& ends = *static_cast<BioEnds*>(BIO_get_data(bio));
  if (ends.too_many_records()) return 0;
  if (ends.in == nullptr || ends.in->empty()) {
    ends.wanted = size;
    BIO_set_retry_read(bio);
    return 0;
  }
  *count = ends.in->take(to, size);
  return 1;
}

int bio_write(BIO* bio, const char* bytes, size_t size, size_t* count) {
  BIO_clear_retry_flags(bio);
  static_cast<BioEnds*>(BIO_get_data(bio))->out->append(bytes, size);
  *count = size;
  return 1;
}

long bio_control(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

const BIO_METHOD* bio_method() {
  // Never freed: connections may still end during the destruction of static objects.
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gradwire");
    BIO_meth_set_read_ex(made, bio_read);
    BIO_meth_set_write_ex(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, bio_create);
    return made;
  }();
  return method;
}

void count_record(int writing, int /*version*/, int content, const void* /*bytes*/, size_t /*size*/,
                  SSL* /*ssl*/, void* ends) {
  if (writing == 0 && (content == SSL3_RT_HEADER || content == SSL3_RT_HANDSHAKE)) {
    ++static_cast<BioEnds*>(ends)->records;
  }
}

}  // namespace

void connect_bio(SSL* ssl, BioEnds* ends) {
  BIO* bio = SSL_get_rbio(ssl);
  if (bio == nullptr) {
    bio = BIO_new(bio_method());
    SSL_set_bio(ssl, bio, bio);
    SSL_set_msg_callback(ssl, count_record);
  }
  BIO_set_data(bio, ends);
  SSL_set_msg_callback_arg(ssl, ends);
}

}  // namespace gradwire::security
