#include "gradwire/tools/inspect/web/page_server.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/security/token/random_bytes.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/web/page.h"
#include "gradwire/tools/inspect/web/page_json.h"

namespace gradwire::inspect {

absl::StatusOr<std::unique_ptr<transport::HttpServer>> start_page_http(const std::string& listen,
                                                                       bool insecure,
                                                                       const security::Secret& token,
                                                                       std::function<std::string()> data) {
  if (absl::StartsWith(listen, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat("malformed address of the page: got \"", listen,
                                                   "\", expected \"HOST:PORT\", which a browser can open"));
  }
  const transport::HttpOptions options = {
      .address = listen,
      .insecure = insecure,
      .consent = "--insecure",
      .headers = {{"Content-Security-Policy", page_policy()},
                  {"Referrer-Policy", "no-referrer"},
                  {"X-Frame-Options", "DENY"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cross-Origin-Resource-Policy", "same-origin"}},
      .only_own_host = true,
  };
  using TokenIn = transport::HttpPage::TokenIn;
  return transport::HttpServer::start(options, {{"/",
                                                 {.type = "text/html; charset=utf-8",
                                                  .make = [] { return page_html(); },
                                                  .token = token,
                                                  .token_in = TokenIn::kQuery}},
                                                {"/data",
                                                 {.type = "application/json",
                                                  .make = std::move(data),
                                                  .token = token,
                                                  .token_in = TokenIn::kHeader}}});
}

namespace {

constexpr std::size_t kTokenBytes = 24;
// Flight records may be long, and change rarely.
constexpr absl::Duration kFlightInterval = absl::Seconds(10);

absl::StatusOr<std::string> protection_of(const SecurityOptions& options) {
  GRADWIRE_ASSIGN_OR_RETURN(const security::CredentialsPtr credentials, security::make_credentials(options));
  switch (credentials->kind()) {
    case security::Credentials::Kind::kToken:
      return "token";
    case security::Credentials::Kind::kCertificate:
      return "certificates";
    case security::Credentials::Kind::kInsecure:
      return "no protection";
    case security::Credentials::Kind::kNone:
      break;
  }
  return "this host only";
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::start(const Options& options) {
  auto server = std::unique_ptr<PageServer>(new PageServer(options));
  GRADWIRE_ASSIGN_OR_RETURN(server->protection_, protection_of(options.place.security));
  PageServer& self = *server;
  GRADWIRE_ASSIGN_OR_RETURN(
      server->server_, start_page_http(options.listen, options.insecure_page, security::Secret(self.token_),
                                       [&self] { return self.data(); }));
  GRADWIRE_ASSIGN_OR_RETURN(
      server->reader_,
      make_with_threads<BackgroundReader>(options, [&self](const Report* report, const std::string& status) {
        self.on_reading(report, status);
      }));
  return server;
}

PageServer::PageServer(const Options& options)
    : options_(options),
      token_(absl::BytesToHexString(security::random_bytes(kTokenBytes))),
      data_(page_json({.status = "connecting"})) {}

PageServer::~PageServer() {
  if (server_ != nullptr) server_->stop();
}

std::string PageServer::url() const { return absl::StrCat("http://", address(), "/?token=", token_); }

void PageServer::on_reading(const Report* report, const std::string& status) {
  if (report != nullptr) {
    history_.add(*report);
    last_ = *report;
  }
  read_flight_records();
  std::string data = page_json({.status = status,
                                .protection = protection_,
                                .report = last_ ? &*last_ : nullptr,
                                .history = &history_,
                                .pass = pass_,
                                .flight_status = flight_status_});
  MutexLock lock(mutex_);
  data_ = std::move(data);
}

void PageServer::read_flight_records() {
  const absl::Time now = Clock::system().now();
  if (options_.flight.empty() || now < flight_due_) return;
  std::string errors;
  std::vector<WorkerTrace> workers = trace_of(tools::read_flight_paths({options_.flight}, errors));
  // Workers of earlier rounds have left files, too. Nothing connects their clocks to the others.
  const auto is_present = [&](const WorkerTrace& worker) {
    return last_ && last_->job.find(worker.incarnation) != nullptr;
  };
  if (std::any_of(workers.begin(), workers.end(), is_present))
    workers.erase(std::remove_if(workers.begin(), workers.end(), std::not_fn(is_present)), workers.end());
  pass_ = last_pass(workers, align_workers(workers));
  flight_status_ = !errors.empty()   ? errors
                   : workers.empty() ? "no flight records yet"
                   : !pass_          ? "the flight records have no backward pass that has ended"
                                     : "";
  flight_due_ = Clock::system().now() + kFlightInterval;
}

std::string PageServer::data() const {
  MutexLock lock(mutex_);
  return data_;
}

}  // namespace gradwire::inspect
