// Every process runs this program. Rank 0 serves the API, the others serve its calls.
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>
#include <string>

#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"
#include "scaler_service.h"

int main(int argc, char** argv) {
  const int rank = gradwire::LaunchInfo::from_env().rank;
  gradwire::rpc::init_rpc("worker" + std::to_string(rank));
  if (rank == 0) {
    downstream::ScalerService service(gradwire::rpc::Agent::current(), "worker1");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(argc > 1 ? argv[1] : "127.0.0.1:50051", grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    std::cout << "serving" << std::endl;
    std::string line;
    std::getline(std::cin, line);  // until the input ends
    server->Shutdown();
  }
  gradwire::rpc::shutdown();
}
