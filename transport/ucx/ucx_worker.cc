#include "gradwire/transport/ucx/ucx_worker.h"

#include "absl/strings/str_cat.h"

namespace gradwire::transport {

absl::Status ucx_error(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat(what, ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::create(const std::string& methods) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  ucp_config_t* config = nullptr;
  if (ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return ucx_error("cannot read UCX's configuration", status);
  }
  ucs_status_t status = UCS_OK;
  if (!methods.empty()) status = ucp_config_modify(config, "TLS", methods.c_str());
  if (status == UCS_OK) {
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "gradwire";
    status = ucp_init(&params, config, &worker->context_);
  }
  ucp_config_release(config);
  if (status != UCS_OK) return ucx_error("cannot start UCX", status);

  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Several threads drive the loop, but only one at a time.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(worker->context_, &params, &worker->worker_);
  if (status != UCS_OK) return ucx_error("cannot create a UCX worker", status);
  status = ucp_worker_get_efd(worker->worker_, &worker->descriptor_);
  if (status != UCS_OK) return ucx_error("cannot get the descriptor of a UCX worker", status);
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace gradwire::transport
