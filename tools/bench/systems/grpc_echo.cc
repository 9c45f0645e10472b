#include "gradwire/tools/bench/systems/grpc_echo.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/security/bench_security.h"
#include "gradwire/tools/bench/suites/bytes.grpc.pb.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/case_timing.h"

namespace gradwire::bench {
namespace {

class Service final : public Echo::Service {
  grpc::Status Null(grpc::ServerContext*, const Nothing*, Nothing*) override { return grpc::Status::OK; }
  grpc::Status Add(grpc::ServerContext*, const Bytes* request, Bytes* reply) override {
    float in[4];
    if (request->data().size() != sizeof in)
      return {grpc::StatusCode::INVALID_ARGUMENT, "expected four floats"};
    std::memcpy(in, request->data().data(), sizeof in);
    const float out[2] = {in[0] + in[2], in[1] + in[3]};
    reply->mutable_data()->assign(reinterpret_cast<const char*>(out), sizeof out);
    return grpc::Status::OK;
  }
  grpc::Status Echo(grpc::ServerContext*, const Bytes* request, Bytes* reply) override {
    // Move the data out of the request, which only the interface declares const: a copy would be unfair to
    // gRPC.
    reply->mutable_data()->swap(*const_cast<Bytes*>(request)->mutable_data());
    return grpc::Status::OK;
  }
  grpc::Status Sum(grpc::ServerContext*, const Bytes* request, Bytes* reply) override {
    // Use eight sums, so that an addition does not depend on the previous one.
    const auto* floats = reinterpret_cast<const float*>(request->data().data());
    double sums[8] = {};
    for (std::size_t i = 0; i + 8 <= request->data().size() / 4; i += 8) {
      for (int n = 0; n < 8; ++n) sums[n] += static_cast<double>(floats[i + n]);
    }
    double sum = 0;
    for (const double part : sums) sum += part;
    reply->mutable_data()->assign(reinterpret_cast<const char*>(&sum), sizeof sum);
    return grpc::Status::OK;
  }
  grpc::Status Pull(grpc::ServerContext*, const Bytes* request, Bytes* reply) override {
    int64_t size = 0;
    if (!absl::SimpleAtoi(request->data(), &size) || size < 0 || size > (int64_t{1} << 31)) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "expected a number of bytes from 0 to 2^31"};
    }
    const MutexLock lock(mutex_);
    std::string& parameter = parameters_[size];
    if (parameter.empty()) {
      parameter.resize(static_cast<std::size_t>(size));
      fill_pattern(parameter.data(), parameter.size(), 0);
    }
    reply->set_data(parameter);
    return grpc::Status::OK;
  }
  grpc::Status Stream(grpc::ServerContext*, const Bytes* request,
                      grpc::ServerWriter<Bytes>* writer) override {
    int64_t size = 0;
    if (!absl::SimpleAtoi(request->data(), &size) || size < 0 || size > (1 << 20)) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "expected a number of bytes from 0 to 2^20"};
    }
    Bytes item;
    item.set_data(std::string(static_cast<std::size_t>(size), 'x'));
    while (writer->Write(item)) continue;
    return grpc::Status::OK;
  }

  Mutex mutex_;
  std::map<int64_t, std::string> parameters_ ABSL_GUARDED_BY(mutex_);
};

class GrpcMember final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.transport == "tls" && endpoint.rank == 0)
      certificates_ = std::make_unique<BenchCertificates>(endpoint.size);
    const std::string folder = certificates_ == nullptr ? "" : certificates_->folder();
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1).SetMaxSendMessageSize(-1);
    builder.AddListeningPort("127.0.0.1:0", server_credentials(folder), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) throw std::runtime_error("gRPC cannot listen on 127.0.0.1");
    return absl::StrCat("127.0.0.1:", port, ",", folder);
  }

  void join(const Endpoint& endpoint) override {
    endpoint_ = endpoint;
    const std::vector<std::string> first = absl::StrSplit(endpoint.addresses.at(0), ',');
    folder_ = first.at(1);
    for (const std::string& address : endpoint.addresses) {
      // With TLS only member 0 is called, because only it has a certificate before it listens.
      const bool called = folder_.empty() || stubs_.empty();
      stubs_.push_back(called ? Echo::NewStub(connect(address.substr(0, address.find(',')))) : nullptr);
    }
  }

  Measurement run(const Task& task) override {
    const CaseName name = parse_case(task.case_name);
    const Timing timing = timing_of(task);
    // Callers that compute between calls have a callee each.
    const int server = name.compute_us > 0 ? endpoint_.rank - endpoint_.size / 2 : 0;
    const auto size = static_cast<std::size_t>(name.bytes);
    if (name.operation == "add2") return run_add(timing, server);
    if (name.operation == "oversubscribed_add2") return run_add(timing, std::nullopt);
    if (name.operation == "inflight_add2") return run_in_flight(task);
    if (name.operation == "null") return run_nothing(timing);
    if (name.operation == "connect") return run_connect(timing);
    if (name.operation == "inflight_null") return run_nothing_in_flight(task);
    if (name.operation == "stream") return run_stream(task, size);
    std::string source(size, '\0');
    Bytes reply;
    if (name.operation == "echo") {
      return measure(
          timing,
          [&](int64_t i) {
            reply.Clear();
            fill_pattern(source.data(), size, static_cast<uint64_t>(i));
          },
          [&](int64_t) { reply = call(0, &Echo::Stub::Echo, source); },
          [&](int64_t i) {
            if (reply.data().size() != size) throw std::runtime_error("wrong size of a reply from gRPC");
            check_pattern(reply.data().data(), size, static_cast<uint64_t>(i));
          });
    }
    if (name.operation == "push") {
      double want = 0;
      return measure(
          timing,
          [&](int64_t i) {
            want = fill_summands(reinterpret_cast<float*>(source.data()), name.bytes / 4,
                                 static_cast<uint64_t>(i));
          },
          [&](int64_t) { reply = call(0, &Echo::Stub::Sum, source); },
          [&](int64_t) {
            double got = 0;
            std::memcpy(&got, reply.data().data(), std::min(sizeof got, reply.data().size()));
            check_sum(got, want);
          });
    }
    if (name.operation == "pull") {
      return measure(
          timing, [&](int64_t) { reply.Clear(); },
          [&](int64_t) { reply = call(0, &Echo::Stub::Pull, absl::StrCat(size)); },
          [&](int64_t) {
            if (reply.data().size() != size) throw std::runtime_error("wrong size of a reply from gRPC");
            check_pattern(reply.data().data(), size, 0);
          });
    }
    throw std::invalid_argument("gRPC cannot run the case " + task.case_name);
  }

 private:
  // With `folder`: TLS, with a certificate of the client too.
  static std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& folder) {
    if (folder.empty()) return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = read_text(folder + "/authority.pem");
    options.pem_key_cert_pairs.push_back({read_text(folder + "/0.key"), read_text(folder + "/0.pem")});
    return grpc::SslServerCredentials(options);
  }

  std::shared_ptr<grpc::ChannelCredentials> channel_credentials() const {
    if (folder_.empty()) return grpc::InsecureChannelCredentials();
    const std::string own = absl::StrCat(folder_, "/", endpoint_.rank);
    return grpc::SslCredentials({.pem_root_certs = read_text(folder_ + "/authority.pem"),
                                 .pem_private_key = read_text(own + ".key"),
                                 .pem_cert_chain = read_text(own + ".pem")});
  }

  // A channel of its own, not one of those that the process has already.
  std::shared_ptr<grpc::Channel> connect(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt("gradwire.bench.channel", ++channels_);
    if (!folder_.empty()) arguments.SetSslTargetNameOverride("localhost");
    auto channel = grpc::CreateCustomChannel(address, channel_credentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)))
      throw std::runtime_error("gRPC cannot connect to " + address);
    return channel;
  }

  // A new connection, from its beginning to the answer to its first call.
  Measurement run_connect(const Timing& timing) {
    const auto unchecked = [](int64_t) {};
    const std::string address = endpoint_.addresses.at(0).substr(0, endpoint_.addresses.at(0).find(','));
    return measure(
        timing, unchecked,
        [&](int64_t) {
          const Nothing request;
          Nothing reply;
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
          check(Echo::NewStub(connect(address))->Null(&context, request, &reply));
        },
        unchecked);
  }

  using Method = grpc::Status (Echo::Stub::*)(grpc::ClientContext*, const Bytes&, Bytes*);

  static void check(const grpc::Status& status) {
    if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
  }

  // Copies the data into the message, as a caller must do whose tensor is not a std::string.
  Bytes call(int to, Method method, const std::string& data) const {
    Bytes request;
    request.set_data(data);
    Bytes reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    check((stubs_.at(static_cast<std::size_t>(to)).get()->*method)(&context, request, &reply));
    return reply;
  }

  struct Add2 {
    Bytes request;
    Bytes reply;
    float n = 0;
    void change(int64_t i) {
      n = static_cast<float>(i & 0xffff);
      const float in[4] = {n, n + 1, 2 * n, 7};
      request.mutable_data()->assign(reinterpret_cast<const char*>(in), sizeof in);
    }
    void check() const {
      float out[2] = {};
      std::memcpy(out, reply.data().data(), std::min(sizeof out, reply.data().size()));
      if (out[0] != 3 * n || out[1] != n + 8) throw std::runtime_error("wrong sum of two floats");
    }
  };

  // Calls the server `to`; without one, every other member in turn.
  Measurement run_add(const Timing& timing, std::optional<int> to) {
    Add2 add;
    return measure(
        timing, [&](int64_t i) { add.change(i); },
        [&](int64_t i) {
          const int step = 1 + static_cast<int>(i % (endpoint_.size - 1));
          add.reply = call(to.value_or((endpoint_.rank + step) % endpoint_.size), &Echo::Stub::Add,
                           add.request.data());
        },
        [&](int64_t) { add.check(); });
  }

  // A call in flight.
  struct Pending {
    std::unique_ptr<grpc::ClientContext> context;
    grpc::Status status;
    std::binary_semaphore done{0};

    grpc::ClientContext* begin() {
      context = std::make_unique<grpc::ClientContext>();
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      return context.get();
    }
    auto on_end() {
      return [this](grpc::Status ended) {
        status = std::move(ended);
        done.release();
      };
    }
    void finish() {
      done.acquire();
      check(status);
    }
  };

  Measurement run_in_flight(const Task& task) {
    struct Slot {
      Add2 add;
      Pending pending;
    };
    std::vector<Slot> slots(static_cast<std::size_t>(task.depth));
    int64_t next = 0;
    return measure_in_flight(
        task.seconds, task.depth,
        [&](int n) {
          Slot& slot = slots[static_cast<std::size_t>(n)];
          slot.add.change(next++);
          stubs_.at(0)->async()->Add(slot.pending.begin(), &slot.add.request, &slot.add.reply,
                                     slot.pending.on_end());
        },
        [&](int n) {
          Slot& slot = slots[static_cast<std::size_t>(n)];
          slot.pending.finish();
          slot.add.check();
        });
  }

  Measurement run_nothing(const Timing& timing) {
    const auto unchecked = [](int64_t) {};
    return measure(
        timing, unchecked,
        [&](int64_t) {
          const Nothing request;
          Nothing reply;
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
          check(stubs_.at(0)->Null(&context, request, &reply));
        },
        unchecked);
  }

  Measurement run_nothing_in_flight(const Task& task) {
    struct Slot {
      Nothing request, reply;
      Pending pending;
    };
    std::vector<Slot> slots(static_cast<std::size_t>(task.depth));
    return measure_in_flight(
        task.seconds, task.depth,
        [&](int n) {
          Slot& slot = slots[static_cast<std::size_t>(n)];
          stubs_.at(0)->async()->Null(slot.pending.begin(), &slot.request, &slot.reply,
                                      slot.pending.on_end());
        },
        [&](int n) { slots[static_cast<std::size_t>(n)].pending.finish(); });
  }

  // Counts the items of one stream.
  Measurement run_stream(const Task& task, std::size_t size) {
    grpc::ClientContext context;
    Bytes request;
    request.set_data(absl::StrCat(size));
    const std::unique_ptr<grpc::ClientReader<Bytes>> reader = stubs_.at(0)->Stream(&context, request);
    Bytes item;
    Measurement result = measure_in_flight(
        task.seconds, 1, [](int) {},
        [&](int) {
          if (!reader->Read(&item) || item.data().size() != size)
            throw std::runtime_error("wrong item of a stream from gRPC");
        });
    context.TryCancel();
    while (reader->Read(&item)) continue;
    (void)reader->Finish();
    return result;
  }

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<BenchCertificates> certificates_;
  // The folder of the certificates; empty: no TLS.
  std::string folder_;
  int channels_ = 0;
  std::vector<std::unique_ptr<Echo::Stub>> stubs_;
  Endpoint endpoint_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_grpc() { return std::make_unique<GrpcMember>(); }

}  // namespace gradwire::bench
