#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace gradwire::rpc {

// How metrics are pushed to an OpenTelemetry collector. A variable of the environment counts where the option
// is not set.
struct OtlpOptions {
  // The collector's address for OTLP over gRPC: "https://HOST:PORT" with TLS, or "http://HOST:PORT" without.
  // The port is 4317 if it is left out. Empty: OTEL_EXPORTER_OTLP_ENDPOINT, or else "http://127.0.0.1:4317".
  std::string endpoint;
  // Time from one export to the next, 10 ms to 1 h. Not set: OTEL_METRIC_EXPORT_INTERVAL, in milliseconds, or
  // else 10 s.
  std::optional<absl::Duration> interval;
  // Maximum time of an export, 10 ms to 1 h. Not set: OTEL_EXPORTER_OTLP_TIMEOUT, in milliseconds, or else
  // 10 s.
  std::optional<absl::Duration> timeout;
  // A file with headers for every export, for example with the key of an account: a line "NAME=VALUE" for
  // each. Only the file's owner may read it. Empty: the variable OTEL_EXPORTER_OTLP_HEADERS, as
  // "NAME=VALUE,NAME=VALUE". In both, "%2C" stands for a comma, and so on. The values are never logged.
  std::string headers_file;
  // A file with the certificates (PEM) of the authorities that may sign the collector's certificate. Empty:
  // OTEL_EXPORTER_OTLP_CERTIFICATE, or else the authorities that gRPC finds in the system.
  std::string certificate_file;
  // Allows "http://" for another host: everybody in the network between can read the metrics and the headers.
  // Allows headers without TLS also on this host: another user may listen at the port of the collector.
  // Also allowed by OTEL_EXPORTER_OTLP_INSECURE=true.
  bool insecure = false;
  // The name of the job, the attribute service.name. Empty: OTEL_SERVICE_NAME, the attribute in
  // OTEL_RESOURCE_ATTRIBUTES, the job's id (TORCHELASTIC_RUN_ID, which the launcher sets), or "gradwire".
  std::string service_name;
  // Attributes of the sender. They replace those of the same name in OTEL_RESOURCE_ATTRIBUTES, which has the
  // form "NAME=VALUE,NAME=VALUE", and the name of the host and of the worker, which are set otherwise
  // (host.name, service.instance.id).
  std::map<std::string, std::string> attributes;
};

}  // namespace gradwire::rpc
