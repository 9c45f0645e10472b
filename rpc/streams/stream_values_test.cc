#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/fragile.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/group.h"

// Items of users' types, whatever makes the stream and whatever reads it: their codecs, copies, moves and
// destructors run on no thread on duty and under no lock, and one that throws ends its stream and nothing
// else.
namespace gradwire::rpc {

using ::gradwire::testing::Fragile;
using ::gradwire::testing::Moves;

// The nth encoding or decoding from now on throws; 0: none.
struct FragileCodec {
  static inline std::atomic<int> until_encode_throws = 0;
  static inline std::atomic<int> until_decode_throws = 0;

  static void may_throw(std::atomic<int>& until, const char* what) {
    if (until > 0 && --until == 0) throw std::runtime_error(what);
  }
};

template <Moves kMoves>
struct Codec<Fragile<kMoves>> : FragileCodec {
  static std::string type_name() { return absl::StrCat("Fragile", static_cast<int>(kMoves)); }
  static absl::Status encode(const Fragile<kMoves>& value, Encoder&, proto::Value& out) {
    may_throw(until_encode_throws, "the encoding failed");
    out.set_integer(value.number());
    return absl::OkStatus();
  }
  static absl::StatusOr<Fragile<kMoves>> decode(const proto::Value& in, Decoder&) {
    may_throw(until_decode_throws, "the decoding failed");
    return absl::StatusOr<Fragile<kMoves>>(absl::in_place, static_cast<int>(in.integer()));
  }
};

namespace {

using ::testing::HasSubstr;

using CopiesOnly = Fragile<Moves::kCopiesOnly>;
using NeverThrows = Fragile<Moves::kNeverThrow>;
using MayThrow = Fragile<Moves::kMayThrow>;

// More than a window, so that the producers wait for room.
constexpr int kItems = 4;
constexpr int64_t kWindow = 2;
const std::string kProducer = "worker1";

int64_t same_item(int64_t number) { return number; }
GRADWIRE_RPC(same_item)

template <class T>
T make_item(int64_t number) {
  return T(static_cast<int>(number));
}

template <class T>
Stream<T> yields(int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    T item(static_cast<int>(i));
    co_yield std::move(item);
  }
}

template <class T>
Future<void> write_all(StreamWriter<T> writer, int64_t n) {
  try {
    // From here on another thread writes.
    Future<int64_t> own = rpc_async<&same_item>(Agent::current()->get_worker_info().name, n);
    co_await own;
    for (int64_t i = 0; i < n; ++i) {
      Future<void> written = writer.write_async(T(static_cast<int>(i)));
      co_await written;
    }
    writer.finish();
  } catch (...) {
    writer.finish(status_from_exception(std::current_exception()));
  }
}
template <class T>
Stream<T> writes_items(int64_t n) {
  auto [stream, writer] = make_stream<T>();
  (void)write_all<T>(writer, n);
  return std::move(stream);
}

// Awaits futures whose values are decoded by the thread that reads them.
template <class T>
Stream<T> relays(int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    Future<T> made = rpc_async<&make_item<T>>("worker0", i);
    T item = co_await made;
    co_yield std::move(item);
  }
}

#define REGISTER_STREAMS_OF(T)                    \
  GRADWIRE_RPC_AS("make item " #T, &make_item<T>) \
  GRADWIRE_RPC_AS("yields " #T, &yields<T>)       \
  GRADWIRE_RPC_AS("writes " #T, &writes_items<T>) \
  GRADWIRE_RPC_AS("relays " #T, &relays<T>)
REGISTER_STREAMS_OF(CopiesOnly)
REGISTER_STREAMS_OF(NeverThrows)
REGISTER_STREAMS_OF(MayThrow)

template <auto F>
auto open_stream(const std::shared_ptr<Agent>& agent) {
  return agent->rpc_stream<F>(StreamDestination(kProducer, {.window_items = kWindow}), kItems);
}
// The functions that make a stream, with their names.
template <class T>
std::vector<std::pair<std::string, RemoteStream<T> (*)(const std::shared_ptr<Agent>&)>> producers() {
  return {{"yields", &open_stream<&yields<T>>},
          {"writes", &open_stream<&writes_items<T>>},
          {"relays", &open_stream<&relays<T>>}};
}

// Each puts the numbers that arrive into `numbers`, and returns after the last one.
template <class T>
using Reader = void (*)(RemoteStream<T>& stream, std::vector<int>& numbers);

template <class T>
Future<void> read_in_coroutine(RemoteStream<T>& stream, std::vector<int>& numbers) {
  while (true) {
    Future<std::optional<T>> next = stream.next_async();
    const std::optional<T> item = co_await next;
    if (!item) co_return;
    numbers.push_back(item->number());
  }
}

template <class T>
std::vector<std::pair<std::string, Reader<T>>> readers() {
  return {
      {"next",
       [](RemoteStream<T>& stream, std::vector<int>& numbers) {
         while (const std::optional<T> item = stream.next()) numbers.push_back(item->number());
       }},
      {"loop",
       [](RemoteStream<T>& stream, std::vector<int>& numbers) {
         for (T& item : stream) numbers.push_back(item.number());
       }},
      {"async",
       [](RemoteStream<T>& stream, std::vector<int>& numbers) {
         while (const std::optional<T> item = stream.next_async().wait()) numbers.push_back(item->number());
       }},
      {"then",
       [](RemoteStream<T>& stream, std::vector<int>& numbers) {
         while (true) {
           const int number =
               stream.next_async()
                   .then([](const std::optional<T>& item) { return item ? item->number() : -1; })
                   .wait();
           if (number < 0) return;
           numbers.push_back(number);
         }
       }},
      {"awaited",
       [](RemoteStream<T>& stream, std::vector<int>& numbers) { read_in_coroutine(stream, numbers).wait(); }},
  };
}

std::vector<int> all_numbers() {
  std::vector<int> numbers(kItems);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

template <class T>
class StreamValues : public ::testing::Test {
 protected:
  // Whatever throws at the nth time: the stream has all items before its error, and nothing else is affected.
  // Returns the texts of the errors.
  template <class Open>
  std::vector<std::string> throw_at_each(std::atomic<int>& until, int most, const Open& open, Reader<T> read,
                                         const std::string& name) {
    std::vector<std::string> errors;
    int n = 1;
    for (; n <= most; ++n) {
      until = n;
      std::vector<int> numbers;
      try {
        RemoteStream<T> stream = open(group_[0]);
        read(stream, numbers);
        EXPECT_EQ(numbers, all_numbers()) << name;
      } catch (const std::exception& error) {
        errors.push_back(error.what());
        std::vector<int> before = all_numbers();
        before.resize(numbers.size());
        EXPECT_EQ(numbers, before) << name;
      }
      // A stream that failed early may still encode or drop items.
      group_.expect_empty();
      const bool ended = until.exchange(0) > 0;
      // Values are dropped on the executor, after the tables are empty.
      EXPECT_TRUE(eventually([] { return T::living == 0; })) << name;
      EXPECT_EQ(group_[0]->template rpc_sync<&same_item>(kProducer, 5), 5);
      EXPECT_EQ(group_[1]->template rpc_sync<&same_item>("worker0", 5), 5);
      if (ended) break;
    }
    EXPECT_LE(n, most) << name;
    return errors;
  }

  testing::Group group_{2};
};
using Types = ::testing::Types<CopiesOnly, NeverThrows, MayThrow>;
TYPED_TEST_SUITE(StreamValues, Types);

TYPED_TEST(StreamValues, AreNotTouchedOnDuty) {
  for (const auto& [producer, open] : producers<TypeParam>()) {
    for (const auto& [reader, read] : readers<TypeParam>()) {
      TypeParam::on_duty_count = 0;
      {
        std::vector<int> numbers;
        RemoteStream<TypeParam> stream = open(this->group_[0]);
        read(stream, numbers);
        EXPECT_EQ(numbers, all_numbers()) << producer << ", " << reader;
        // Nobody reads these items.
        (void)open(this->group_[0]);
        RemoteStream<TypeParam> left = open(this->group_[0]);
        const Future<std::optional<TypeParam>> unread = left.next_async();
        EXPECT_TRUE(eventually([&] { return unread.done(); }));
      }
      this->group_.expect_empty();
      EXPECT_TRUE(eventually([] { return TypeParam::living == 0; })) << producer << ", " << reader;
      EXPECT_EQ(TypeParam::on_duty_count, 0) << producer << ", " << reader;
    }
  }
}

TYPED_TEST(StreamValues, OneWhoseCopyThrowsEndsItsStreamAndNothingElse) {
  for (const auto& [producer, open] : producers<TypeParam>()) {
    for (const auto& [reader, read] : readers<TypeParam>()) {
      const std::string name = absl::StrCat(producer, ", ", reader);
      for (const std::string& error :
           this->throw_at_each(TypeParam::until_throw, 30 * kItems, open, read, name))
        EXPECT_THAT(error, HasSubstr("the copy failed")) << name;
    }
  }
}

TYPED_TEST(StreamValues, OneWhoseCodecThrowsEndsItsStreamWithTheNameOfTheFunction) {
  for (const auto& [producer, open] : producers<TypeParam>()) {
    if (producer == "relays") continue;  // The codec of a call.
    for (const auto& [reader, read] : readers<TypeParam>()) {
      const std::string name = absl::StrCat(producer, ", ", reader);
      const std::vector<std::string> encoding =
          this->throw_at_each(FragileCodec::until_encode_throws, 2 * kItems, open, read, name);
      EXPECT_EQ(encoding.size(), kItems);
      for (const std::string& error : encoding) {
        EXPECT_THAT(error, HasSubstr("the encoding failed")) << name;
        EXPECT_THAT(error, HasSubstr(absl::StrCat("\"", producer, " "))) << name;
      }
      const std::vector<std::string> decoding =
          this->throw_at_each(FragileCodec::until_decode_throws, 2 * kItems, open, read, name);
      EXPECT_EQ(decoding.size(), kItems);
      for (const std::string& error : decoding) {
        EXPECT_THAT(error, HasSubstr("the decoding failed")) << name;
        EXPECT_THAT(error, HasSubstr(absl::StrCat("the stream of \"", producer, " "))) << name;
      }
    }
  }
}

// After an item that cannot be decoded the stream has ended, also if it was the last one.
TYPED_TEST(StreamValues, TheErrorOfAnItemStays) {
  for (const int bad : {1, kItems}) {
    FragileCodec::until_decode_throws = bad;
    RemoteStream<TypeParam> stream = open_stream<&yields<TypeParam>>(this->group_[0]);
    for (int i = 1; i < bad; ++i) EXPECT_TRUE(stream.next().has_value());
    for (int i = 0; i < 2; ++i) {
      try {
        stream.next();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("the decoding failed"));
      }
    }
  }
}

// An item whose copies, moves and destructor use the writer of the stream, from another thread so that a lock
// which is held is found.
class UsesItsWriter {
 public:
  // The source whose lock must be free, while there is one.
  static inline Mutex mutex;
  static inline std::optional<StreamWriter<UsesItsWriter>> writer ABSL_GUARDED_BY(mutex);
  static inline std::vector<std::thread> threads ABSL_GUARDED_BY(mutex);
  static inline std::atomic<int> uses = 0;
  static inline std::atomic<bool> locked = false;

  UsesItsWriter() = default;
  UsesItsWriter(const UsesItsWriter&) { use(); }
  UsesItsWriter(UsesItsWriter&&) { use(); }  // NOLINT(performance-noexcept-move-constructor)
  ~UsesItsWriter() { use(); }

 private:
  static void use() {
    if (locked) return;
    const auto done = std::make_shared<std::atomic<bool>>(false);
    {
      MutexLock lock(mutex);
      if (!writer) return;
      threads.emplace_back([done, used = *writer] {
        (void)used.cancelled();
        *done = true;
      });
    }
    ++uses;
    if (!eventually([&] { return done->load(); })) locked = true;
  }
};

}  // namespace

template <>
struct Codec<UsesItsWriter> {
  static std::string type_name() { return "UsesItsWriter"; }
  static absl::Status encode(const UsesItsWriter&, Encoder&, proto::Value& out) {
    out.set_integer(0);
    return absl::OkStatus();
  }
  static absl::StatusOr<UsesItsWriter> decode(const proto::Value&, Decoder&) {
    return absl::StatusOr<UsesItsWriter>(absl::in_place);
  }
};

namespace {

Stream<UsesItsWriter> writes_users() {
  auto [stream, writer] = make_stream<UsesItsWriter>();
  {
    MutexLock lock(UsesItsWriter::mutex);
    UsesItsWriter::writer = writer;
  }
  for (int i = 0; i < kItems; ++i) writer.write(UsesItsWriter());
  return std::move(stream);
}
GRADWIRE_RPC(writes_users)

TEST(StreamItems, AreNotTouchedUnderTheLockOfTheirStream) {
  testing::Group group(2);
  {
    RemoteStream<UsesItsWriter> stream =
        group[0]->rpc_stream<&writes_users>(StreamDestination(kProducer, {.window_items = kWindow}));
    for (int i = 0; i < kItems / 2; ++i) EXPECT_TRUE(stream.next().has_value());
    // The other items are dropped.
  }
  // The writers on the threads hold the stream.
  std::vector<std::thread> threads;
  {
    MutexLock lock(UsesItsWriter::mutex);
    UsesItsWriter::writer.reset();
    threads.swap(UsesItsWriter::threads);
  }
  for (std::thread& thread : threads) thread.join();
  group.expect_empty();
  EXPECT_GT(UsesItsWriter::uses, kItems);
  EXPECT_FALSE(UsesItsWriter::locked);
}

}  // namespace
}  // namespace gradwire::rpc
