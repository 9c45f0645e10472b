#include "gradwire/store/c10d/c10d_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

// The fields of a query, in their order: a list or a fixed number of strings, and a number.
struct Fields {
  bool list = false;
  // Strings of one entry, for a list.
  uint64_t strings = 0;
  std::size_t number_bytes = 0;
};

std::optional<Fields> fields_of(C10dQuery query) {
  switch (query) {
    case C10dQuery::kValidate:
    case C10dQuery::kPing:
      return Fields{.number_bytes = 4};
    case C10dQuery::kNumKeys:
    case C10dQuery::kCancelWait:
    case C10dQuery::kListKeys:
      return Fields{};
    case C10dQuery::kGet:
    case C10dQuery::kDeleteKey:
    case C10dQuery::kQueuePop:
    case C10dQuery::kQueueLen:
      return Fields{.strings = 1};
    case C10dQuery::kAdd:
      return Fields{.strings = 1, .number_bytes = 8};
    case C10dQuery::kSet:
    case C10dQuery::kAppend:
    case C10dQuery::kQueuePush:
      return Fields{.strings = 2};
    case C10dQuery::kCompareSet:
      return Fields{.strings = 3};
    case C10dQuery::kCheck:
    case C10dQuery::kWait:
    case C10dQuery::kMultiGet:
      return Fields{.list = true, .strings = 1};
    case C10dQuery::kMultiSet:
      return Fields{.list = true, .strings = 2};
  }
  return std::nullopt;
}

absl::Status too_long(absl::string_view what, uint64_t got, uint64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("a ", what, " of ", got, " is over the limit of ", limit));
}

}  // namespace

absl::Status C10dParser::begin_query(uint8_t code) {
  request_ = C10dRequest();
  request_.query = static_cast<C10dQuery>(code);
  const std::optional<Fields> fields = fields_of(request_.query);
  if (!fields.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown query ", code, ": the client is not a TCPStore of PyTorch, or of a newer version"));
  }
  is_list_ = fields->list;
  strings_left_ = fields->strings;
  number_bytes_ = fields->number_bytes;
  list_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status C10dParser::begin_list(uint64_t count) {
  if (count > kMaxKeysPerWait) return too_long("number of keys", count, kMaxKeysPerWait);
  strings_left_ *= count;
  return absl::OkStatus();
}

absl::Status C10dParser::begin_string(uint64_t length) {
  const bool pairs = request_.query == C10dQuery::kMultiSet;
  const std::size_t index = request_.strings.size();
  const bool is_key = is_list_ ? !pairs || index % 2 == 0 : index == 0;
  const std::size_t limit = is_key ? kMaxC10dKeyBytes : kMaxValueBytes;
  if (length > limit) return too_long(is_key ? "key length" : "value length", length, limit);
  list_bytes_ += length;
  if (is_list_ && list_bytes_ > kMaxC10dListBytes)
    return too_long("list length", list_bytes_, kMaxC10dListBytes);
  string_bytes_left_ = length;
  request_.strings.emplace_back();
  return absl::OkStatus();
}

bool C10dParser::next() {
  stage_ = strings_left_ > 0 ? Stage::kLength : number_bytes_ > 0 ? Stage::kNumber : Stage::kQuery;
  return stage_ == Stage::kQuery;
}

bool C10dParser::collect(absl::string_view& bytes, std::size_t size) {
  const std::size_t taken = std::min(size - number_.size(), bytes.size());
  number_.append(bytes.data(), taken);
  bytes.remove_prefix(taken);
  return number_.size() == size;
}

absl::StatusOr<bool> C10dParser::read(absl::string_view& bytes, C10dRequest& request) {
  while (!bytes.empty()) {
    bool complete = false;
    switch (stage_) {
      case Stage::kQuery:
        GRADWIRE_RETURN_IF_ERROR(begin_query(static_cast<uint8_t>(bytes.front())));
        bytes.remove_prefix(1);
        if (is_list_) {
          stage_ = Stage::kCount;
        } else {
          complete = next();
        }
        break;
      case Stage::kCount:
        if (!collect(bytes, 8)) return false;
        GRADWIRE_RETURN_IF_ERROR(begin_list(load_c10d_number(std::exchange(number_, {}))));
        complete = next();
        break;
      case Stage::kLength:
        if (!collect(bytes, 8)) return false;
        GRADWIRE_RETURN_IF_ERROR(begin_string(load_c10d_number(std::exchange(number_, {}))));
        stage_ = Stage::kString;
        // An empty string is complete without further bytes.
        if (string_bytes_left_ == 0) {
          --strings_left_;
          complete = next();
        }
        break;
      case Stage::kString: {
        const std::size_t taken = std::min(string_bytes_left_, bytes.size());
        request_.strings.back().append(bytes.data(), taken);
        bytes.remove_prefix(taken);
        string_bytes_left_ -= taken;
        if (string_bytes_left_ > 0) return false;
        --strings_left_;
        complete = next();
        break;
      }
      case Stage::kNumber:
        if (!collect(bytes, number_bytes_)) return false;
        request_.number = load_c10d_number(std::exchange(number_, {}));
        number_bytes_ = 0;
        complete = next();
        break;
    }
    if (complete) {
      request = std::move(request_);
      return true;
    }
  }
  return false;
}

}  // namespace gradwire::store
