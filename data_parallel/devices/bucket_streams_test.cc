#include "gradwire/data_parallel/devices/bucket_streams.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <vector>

#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"

namespace gradwire::data_parallel {
namespace {

// The destructor checks that nothing is in use on a device.
struct NothingLeft {
  ~NothingLeft() { lag::expect_nothing_left(); }
};

// One bucket, of zeros, on the stream `made_`. Another stream writes into it.
class BucketStreamsTest : public ::testing::Test {
 protected:
  BucketStreamsTest() {
    lag::set_lag(lag::Profile::none());
    const c10::StreamGuard guard(made_);
    flat_ = at::zeros({1000}, at::TensorOptions().device(lag::device(0)));
    lag::synchronize_all();
  }

  void reset() {
    const c10::StreamGuard guard(made_);
    streams_.reset({flat_});
  }
  void write() {
    const c10::StreamGuard guard(writer_);
    streams_.wrote(0, flat_);
    flat_.fill_(3);
  }

  const NothingLeft after_the_members_;
  const c10::Stream made_ = lag::unshared_stream(0);
  const c10::Stream writer_ = lag::unshared_stream(0);
  at::Tensor flat_;
  BucketStreams streams_;
};

TEST_F(BucketStreamsTest, AWriterWaitsForTheWorkOnTheNewBucket) {
  lag::StreamHold hold(made_);
  reset();
  write();
  EXPECT_FALSE(lag::reaches_end_soon(writer_));
  hold.release();
  EXPECT_TRUE(lag::reaches_end_soon(writer_));
}

TEST_F(BucketStreamsTest, AReductionWaitsForTheWritersSinceTheLastOne) {
  reset();
  const c10::Stream reduction = lag::unshared_stream(0);
  {
    lag::StreamHold hold(writer_);
    write();
    const c10::StreamGuard guard(reduction);
    streams_.before_reduction(0, flat_);
    EXPECT_FALSE(lag::reaches_end_soon(reduction));
  }
  EXPECT_TRUE(lag::reaches_end_soon(reduction));
  // The writer has not written again.
  const lag::StreamHold hold(writer_);
  const c10::StreamGuard guard(reduction);
  streams_.before_reduction(0, flat_);
  EXPECT_TRUE(lag::reaches_end_soon(reduction));
}

TEST_F(BucketStreamsTest, TheMemoryOfABucketIsKeptForItsWriters) {
  reset();
  const void* const memory = flat_.const_data_ptr();
  lag::StreamHold hold(writer_);
  write();
  flat_ = at::Tensor();
  const c10::StreamGuard guard(made_);
  const auto make = [] { return at::zeros({1000}, at::TensorOptions().device(lag::device(0))); };
  const at::Tensor other = make();
  EXPECT_NE(other.const_data_ptr(), memory);
  hold.release();
  lag::synchronize_all();
  EXPECT_EQ(make().const_data_ptr(), memory);
}

}  // namespace
}  // namespace gradwire::data_parallel
