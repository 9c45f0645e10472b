#include "gradwire/tools/launch/options/option_conf.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/options/option_values.h"

namespace gradwire::tools {
namespace {

constexpr int kMaxAttempts = 1000000;

template <auto member>
absl::Status read_duration(absl::string_view value, RendezvousConf& conf) {
  absl::Duration time;
  GRADWIRE_RETURN_IF_ERROR(parse_seconds(value, time));
  if (time <= absl::ZeroDuration()) return absl::InvalidArgumentError("the time must be positive, got 0");
  conf.*member = time;
  return absl::OkStatus();
}

template <std::string store::EtcdSecurity::*member>
absl::Status read_text(absl::string_view value, RendezvousConf& conf) {
  conf.etcd.*member = std::string(value);
  return value.empty() ? absl::InvalidArgumentError("the value is empty") : absl::OkStatus();
}

absl::Status read_last_call(absl::string_view value, RendezvousConf& conf) {
  return parse_seconds(value, conf.last_call_timeout);
}

absl::Status read_attempts(absl::string_view value, RendezvousConf& conf) {
  return parse_int(value, 1, kMaxAttempts, conf.keep_alive_max_attempt);
}

absl::Status read_is_host(absl::string_view value, RendezvousConf& conf) {
  return parse_bool(value, conf.is_host.emplace());
}

struct ConfRow {
  absl::string_view name;
  absl::Status (*read)(absl::string_view value, RendezvousConf& conf);
};

constexpr ConfRow kRows[] = {
    {"join_timeout", &read_duration<&RendezvousConf::join_timeout>},
    {"timeout", &read_duration<&RendezvousConf::join_timeout>},
    {"last_call_timeout", &read_last_call},
    {"close_timeout", &read_duration<&RendezvousConf::close_timeout>},
    {"keep_alive_interval", &read_duration<&RendezvousConf::keep_alive_interval>},
    {"keep_alive_max_attempt", &read_attempts},
    {"read_timeout", &read_duration<&RendezvousConf::read_timeout>},
    {"is_host", &read_is_host},
    {"cacert", &read_text<&store::EtcdSecurity::authority_file>},
    {"cert", &read_text<&store::EtcdSecurity::certificate_file>},
    {"key", &read_text<&store::EtcdSecurity::key_file>},
    {"user", &read_text<&store::EtcdSecurity::user>},
    {"password", &read_text<&store::EtcdSecurity::password>},
};

absl::Status read_part(absl::string_view part, RendezvousConf& conf) {
  const std::vector<absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
  const absl::string_view name = absl::StripAsciiWhitespace(pair[0]);
  if (pair.size() != 2) {
    // Do not print a part after a password: it may be the rest of a password that contains a comma.
    return absl::InvalidArgumentError(
        absl::StrCat(conf.etcd.password.empty() ? absl::StrCat("\"", name, "\"") : "a part",
                     " is not NAME=VALUE (a value cannot contain a comma)"));
  }
  for (const ConfRow& row : kRows) {
    if (row.name == name) return with_context(row.read(absl::StripAsciiWhitespace(pair[1]), conf), name);
  }
  const std::string known = absl::StrJoin(
      kRows, ", ", [](std::string* out, const ConfRow& row) { absl::StrAppend(out, row.name); });
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not one of ", known));
}

}  // namespace

absl::Status parse_rendezvous_conf(absl::string_view text, RendezvousConf& conf) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    if (absl::StripAsciiWhitespace(part).empty()) continue;
    GRADWIRE_RETURN_IF_ERROR(read_part(part, conf));
  }
  if (conf.etcd.certificate_file.empty() != conf.etcd.key_file.empty()) {
    return absl::InvalidArgumentError("cert and key belong together: give both or neither");
  }
  if (conf.etcd.user.empty() != conf.etcd.password.empty()) {
    return absl::InvalidArgumentError("user and password belong together: give both or neither");
  }
  return absl::OkStatus();
}

}  // namespace gradwire::tools
