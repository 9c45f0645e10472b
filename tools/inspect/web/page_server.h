#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/secret.h"
#include "gradwire/tools/inspect/input/background_reader.h"
#include "gradwire/tools/inspect/input/options.h"
#include "gradwire/tools/inspect/view/report.h"
#include "gradwire/tools/inspect/web/critical_path.h"
#include "gradwire/tools/inspect/web/history.h"
#include "gradwire/transport/http/http_server.h"

namespace gradwire::inspect {

// Serves the page at "/", with the token in the query, and its data at "/data", with the token in a header.
// Nothing else. `data` returns JSON, and runs on the server's thread. Errors: InvalidArgument for an address
// that is not "HOST:PORT"; those of HttpServer::start().
absl::StatusOr<std::unique_ptr<transport::HttpServer>> start_page_http(const std::string& listen,
                                                                       bool insecure,
                                                                       const security::Secret& token,
                                                                       std::function<std::string()> data);

// Reads a job again and again, and serves a page about it, at Options::listen. The page and its data need the
// token, which is new for each server. Requests are answered from the last reading, so their number does not
// change what the workers have to do. One thread reads the job, and one answers. Thread-safe.
class PageServer {
 public:
  // Errors: InvalidArgument for a malformed address or credentials; FailedPrecondition for an address that
  // other hosts reach without Options::insecure_page; Unavailable if it cannot be listened at. A job that
  // cannot be read is not an error: the page says why.
  static absl::StatusOr<std::unique_ptr<PageServer>> start(const Options& options);
  // Ends the server, then the reading; as BackgroundReader.
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // The job has its store at another address from now on, for example in another round. Does not wait.
  void set_store(const std::string& store) { reader_->set_store(store); }

  // The address of the page, with the token.
  std::string url() const;
  // "HOST:PORT".
  const std::string& address() const { return server_->address(); }

 private:
  explicit PageServer(const Options& options);
  void on_reading(const Report* report, const std::string& status);
  void read_flight_records();
  std::string data() const;

  // Set once, before the threads start.
  const Options options_;
  const std::string token_;
  std::string protection_;
  std::unique_ptr<transport::HttpServer> server_;

  // Used by the reader's thread.
  History history_;
  std::optional<Report> last_;
  std::optional<PassPath> pass_;
  std::string flight_status_;
  absl::Time flight_due_ = absl::InfinitePast();

  mutable Mutex mutex_;
  std::string data_ ABSL_GUARDED_BY(mutex_);

  // The last member: its thread uses the others.
  std::unique_ptr<BackgroundReader> reader_;
};

}  // namespace gradwire::inspect
