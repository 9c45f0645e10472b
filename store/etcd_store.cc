#include "gradwire/store/etcd_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/etcd/etcd_client.h"
#include "gradwire/store/etcd/etcd_lease.h"
#include "gradwire/store/etcd/etcd_reader.h"
#include "gradwire/store/etcd/etcd_writer.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/interface/quoted_key.h"

namespace gradwire::store {
namespace {

using Change = EtcdWriter::Change;
using Outcome = EtcdWriter::Outcome;

// etcd's own limit.
constexpr absl::Duration kMaxLease = absl::Seconds(9'000'000'000);

// Returns the change that adds `n`, or no change with an error. The sum is also the note: if the answer is
// lost, the writer reads the sum from the slot.
Change add_to(const std::optional<std::string>& current, int64_t n, absl::string_view key) {
  int64_t number = 0, sum = 0;
  const auto refuse = [&](absl::string_view why) {
    return Change{.kind = Change::kNone,
                  .error = absl::InvalidArgumentError(
                      absl::StrCat("cannot add ", n, " to store key ", quoted_key(key), ": ", why))};
  };
  if (current.has_value() && !absl::SimpleAtoi(*current, &number))
    return refuse("its value is not a decimal number");
  if (__builtin_add_overflow(number, n, &sum)) return refuse("the sum does not fit 64 bits");
  return Change{.kind = Change::kPut, .value = absl::StrCat(sum), .note = absl::StrCat(sum)};
}

// A queue is one key of etcd, whose value has all its items. It does not exist while the queue is empty.
std::optional<std::vector<std::string>> parse_queue(const std::optional<std::string>& value) {
  if (!value.has_value()) return std::vector<std::string>();
  proto::KeyList list;
  if (!list.ParseFromString(*value)) return std::nullopt;
  return unpack_keys(list, kMaxValueBytes);
}

Change malformed_queue() {
  return Change{.kind = Change::kNone,
                .error = absl::InvalidArgumentError(
                    "malformed queue in etcd: another program has written under this store's prefix")};
}

Change push_to(const std::optional<std::string>& current, absl::string_view item) {
  const std::optional<std::vector<std::string>> items = parse_queue(current);
  if (!items.has_value()) return malformed_queue();
  proto::KeyList list;
  pack_keys(*items, list);
  pack_key(item, list);
  return Change{.kind = Change::kPut, .value = list.SerializeAsString()};
}

// The item is also the note: if the answer is lost, the writer reads it from the slot.
Change pop_from(const std::optional<std::string>& current) {
  std::optional<std::vector<std::string>> items = parse_queue(current);
  if (!items.has_value()) return malformed_queue();
  if (items->empty()) return Change{.kind = Change::kNone};
  std::string item = std::move(items->front());
  items->erase(items->begin());
  if (items->empty()) return Change{.kind = Change::kErase, .note = std::move(item)};
  proto::KeyList list;
  pack_keys(*items, list);
  return Change{.kind = Change::kPut, .value = list.SerializeAsString(), .note = std::move(item)};
}

}  // namespace

EtcdStore::EtcdStore(Unopened, const std::vector<std::string>& endpoints, const std::string& prefix,
                     const EtcdStoreOptions& options)
    : Store(options.timeout), endpoints_(endpoints), prefix_(prefix), options_(options) {}

EtcdStore::EtcdStore(const std::vector<std::string>& endpoints, const std::string& prefix,
                     EtcdStoreOptions options)
    : EtcdStore(Unopened{}, endpoints, prefix, options) {
  throw_if_error(start(options));
}

// In a forked child the lease and the connections are those of the parent.
EtcdStore::~EtcdStore() {
  if (!in_own_process()) leak_after_fork(writer_, lease_, client_);
}

absl::StatusOr<std::shared_ptr<EtcdStore>> EtcdStore::open(const std::vector<std::string>& endpoints,
                                                           const std::string& prefix,
                                                           EtcdStoreOptions options) {
  std::shared_ptr<EtcdStore> store(new EtcdStore(Unopened{}, endpoints, prefix, options));
  GRADWIRE_RETURN_IF_ERROR(store->start(options));
  return store;
}

absl::Status EtcdStore::start(const EtcdStoreOptions& options) {
  if (prefix_.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an EtcdStore's prefix of ", prefix_.size(),
                                                   " bytes is over the limit of ", kMaxKeyBytes));
  }
  if (options.lease_ttl < absl::ZeroDuration() || options.lease_ttl > kMaxLease) {
    return absl::InvalidArgumentError(absl::StrCat("lease_ttl out of range: got ",
                                                   absl::FormatDuration(options.lease_ttl),
                                                   ", expected 0 (no lease) to 285 years"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<EtcdMember> members, open_etcd_members(endpoints_, options.security));
  client_ = std::make_unique<EtcdClient>(EtcdClient::Options{.members = std::move(members),
                                                             .user = options.security.user,
                                                             .password = options.security.password,
                                                             .name = description(),
                                                             .prefix = prefix_},
                                         clock());
  const absl::Time deadline = clock().now() + options.timeout;
  // This call checks that etcd answers and that the store may read.
  GRADWIRE_RETURN_IF_ERROR(do_num_keys("", deadline).status());
  if (options.lease_ttl > absl::ZeroDuration()) {
    GRADWIRE_ASSIGN_OR_RETURN(
        lease_, make_with_threads<EtcdLease>(*client_, absl::Ceil(options.lease_ttl, absl::Seconds(1)),
                                             description(), clock()));
    GRADWIRE_RETURN_IF_ERROR(lease_->id(deadline).status());
  }
  // The keys of the slots do not begin with "prefix/", as the store's keys do, so they are neither counted
  // nor found.
  writer_ = std::make_unique<EtcdWriter>(
      *client_, lease_.get(),
      absl::StrCat(prefix_, absl::string_view("\0slot/", 6), absl::Hex(random_id()), "/"), clock());
  return absl::OkStatus();
}

std::string EtcdStore::description() const {
  return absl::StrCat("EtcdStore ", quoted_key(prefix_), " at ", absl::StrJoin(endpoints_, ", "));
}

std::string EtcdStore::full_key(absl::string_view key) const { return absl::StrCat(prefix_, "/", key); }

// The keys of queues do not begin with "prefix/" either.
std::string EtcdStore::queue_key(absl::string_view queue) const {
  return absl::StrCat(prefix_, absl::string_view("\0queue/", 7), queue);
}

absl::Status EtcdStore::do_set(absl::Span<const Entry> entries, absl::Time deadline) {
  for (const auto& [key, value] : entries) {
    GRADWIRE_RETURN_IF_ERROR(writer_->put(full_key(key), value, deadline));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::do_append(absl::string_view key, absl::string_view value, absl::Time deadline) {
  const auto decide = [&](const std::optional<std::string>& current) {
    std::string longer = absl::StrCat(current.value_or(""), value);
    if (longer.size() <= kMaxValueBytes) return Change{.kind = Change::kPut, .value = std::move(longer)};
    return Change{.kind = Change::kNone,
                  .error = absl::ResourceExhaustedError(absl::StrCat(
                      "append: a value of ", longer.size(), " bytes is over the limit of ", kMaxValueBytes))};
  };
  return writer_->update(full_key(key), decide, deadline).status();
}

absl::StatusOr<int64_t> EtcdStore::do_add(absl::string_view key, int64_t n, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(
      const Outcome outcome,
      writer_->update(
          full_key(key), [&](const std::optional<std::string>& current) { return add_to(current, n, key); },
          deadline));
  int64_t sum = 0;
  if (!absl::SimpleAtoi(outcome.note.value_or(""), &sum)) {
    return client_->not_etcd_error("it returned another value than this store wrote");
  }
  return sum;
}

absl::StatusOr<std::string> EtcdStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                      absl::string_view desired, absl::Time deadline) {
  const auto decide = [&](const std::optional<std::string>& current) {
    // A missing key equals the empty value.
    if (current.value_or("") != expected) return Change{.kind = Change::kNone};
    return Change{.kind = Change::kPut, .value = std::string(desired)};
  };
  GRADWIRE_ASSIGN_OR_RETURN(Outcome outcome, writer_->update(full_key(key), decide, deadline));
  if (outcome.note.has_value()) return std::string(desired);
  return outcome.current.has_value() ? *std::move(outcome.current) : std::string(expected);
}

absl::StatusOr<bool> EtcdStore::do_delete_key(absl::string_view key, absl::Time deadline) {
  const auto decide = [](const std::optional<std::string>& current) {
    return Change{.kind = current.has_value() ? Change::kErase : Change::kNone};
  };
  GRADWIRE_ASSIGN_OR_RETURN(const Outcome outcome, writer_->update(full_key(key), decide, deadline));
  return outcome.note.has_value();
}

absl::StatusOr<int64_t> EtcdStore::do_num_keys(absl::string_view prefix, absl::Time deadline) {
  return EtcdReader(*client_, clock()).count_under(full_key(prefix), deadline);
}

absl::StatusOr<std::vector<std::string>> EtcdStore::do_list_keys(absl::string_view prefix,
                                                                 absl::Time deadline) {
  return EtcdReader(*client_, clock()).list_under(full_key(prefix), full_key("").size(), deadline);
}

absl::StatusOr<bool> EtcdStore::do_check(const std::vector<std::string>& keys, absl::Time deadline) {
  std::vector<std::string> full;
  for (const std::string& key : keys) full.push_back(full_key(key));
  return EtcdReader(*client_, clock()).all_exist(full, deadline);
}

// Reads the keys one after the other when all exist. If one has been deleted meanwhile, waits for all again.
absl::StatusOr<Store::Values> EtcdStore::do_multi_get(const std::vector<std::string>& keys,
                                                      absl::Time deadline) {
  EtcdReader reader(*client_, clock());
  while (true) {
    Values values;
    GRADWIRE_ASSIGN_OR_RETURN(values.missing, do_wait(keys, deadline));
    if (!values.missing.empty()) return values;
    std::size_t bytes = 0;
    for (const std::string& key : keys) {
      GRADWIRE_ASSIGN_OR_RETURN(EtcdReader::Found found, reader.get(full_key(key), deadline));
      if (!found.now.value.has_value()) break;
      bytes += found.now.value->size();
      if (bytes > kMaxMultiBytes) {
        return absl::ResourceExhaustedError(absl::StrCat("the values of these ", keys.size(),
                                                         " keys take more than the limit of ", kMaxMultiBytes,
                                                         " bytes; get fewer keys at once"));
      }
      values.values.push_back(*std::move(found.now.value));
    }
    if (values.values.size() == keys.size()) return values;
  }
}

absl::StatusOr<std::vector<std::string>> EtcdStore::do_wait(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  // Keys may be named twice; the answer names each missing one once.
  std::vector<std::string> distinct, full;
  HashSet<absl::string_view> seen;
  for (const std::string& key : keys) {
    if (!seen.insert(key).second) continue;
    distinct.push_back(key);
    full.push_back(full_key(key));
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::size_t> missing,
                            EtcdReader(*client_, clock()).wait(full, deadline));
  std::vector<std::string> names;
  for (const std::size_t index : missing) names.push_back(std::move(distinct[index]));
  return names;
}

absl::StatusOr<std::optional<std::string>> EtcdStore::do_watch(absl::string_view key,
                                                               std::optional<absl::string_view> last_value,
                                                               absl::Time deadline) {
  return EtcdReader(*client_, clock()).watch(full_key(key), last_value, deadline);
}

absl::Status EtcdStore::do_queue_push(absl::string_view queue, absl::string_view value, absl::Time deadline) {
  const auto decide = [&](const std::optional<std::string>& current) { return push_to(current, value); };
  return writer_->update(queue_key(queue), decide, deadline).status();
}

absl::StatusOr<std::optional<std::string>> EtcdStore::do_queue_pop(absl::string_view queue,
                                                                   absl::Time deadline) {
  const std::string key = queue_key(queue);
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(Outcome outcome, writer_->update(key, pop_from, deadline));
    if (outcome.note.has_value()) return std::move(outcome.note);
    GRADWIRE_ASSIGN_OR_RETURN(const std::optional<std::string> items,
                              EtcdReader(*client_, clock()).watch(key, std::nullopt, deadline));
    if (!items.has_value()) return std::optional<std::string>();
  }
}

absl::StatusOr<int64_t> EtcdStore::do_queue_len(absl::string_view queue, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const EtcdReader::Found found,
                            EtcdReader(*client_, clock()).get(queue_key(queue), deadline));
  const std::optional<std::vector<std::string>> items = parse_queue(found.now.value);
  if (!items.has_value()) return malformed_queue().error;
  return static_cast<int64_t>(items->size());
}

absl::StatusOr<std::shared_ptr<Store>> EtcdStore::do_clone(absl::Time deadline) {
  EtcdStoreOptions options = options_;
  options.timeout = deadline - clock().now();
  return open(endpoints_, prefix_, std::move(options));
}

}  // namespace gradwire::store
