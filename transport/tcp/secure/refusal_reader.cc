#include "gradwire/transport/tcp/secure/refusal_reader.h"

namespace gradwire::transport {

RefusalReader::Progress RefusalReader::add(absl::Span<const char>& bytes) {
  const absl::StatusOr<std::size_t> taken = parser_.add({bytes.data(), bytes.size()});
  if (!taken.ok()) return Progress::kOther;
  held_.append(bytes.data(), *taken);
  bytes.remove_prefix(*taken);
  if (!parser_.complete()) return Progress::kMore;
  const security::Record record = parser_.take();
  if (record.kind != security::Record::Kind::kRefusal) return Progress::kOther;
  sentence_ = record.sentence();
  return Progress::kRefusal;
}

}  // namespace gradwire::transport
