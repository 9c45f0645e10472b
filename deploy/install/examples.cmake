# Builds the examples with an installed Gradwire:
#   cmake -S PREFIX/share/gradwire/examples -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
cmake_minimum_required(VERSION 3.25)
project(gradwire_examples CXX)

find_package(gradwire REQUIRED)
find_package(absl CONFIG REQUIRED)

# The data is compiled in, so that the examples find it from any directory.
add_custom_command(
  OUTPUT digits_csv.cc
  DEPENDS data/digits.csv.gz
  COMMAND sh -c "{ echo '#include \"examples/data/digits_csv.h\"'; echo 'std::string_view gradwire::examples::digits_csv() { return'; gzip -dc '${CMAKE_CURRENT_SOURCE_DIR}/data/digits.csv.gz' | sed 's/.*/\"&\\\\n\"/'; echo '; }'; } >digits_csv.cc"
  VERBATIM)

# The functions that workers register are in object files of the program, so the linker keeps them.
function(example name)
  add_executable(${name} ${ARGN})
  # The sources are included as "examples/FOLDER/FILE.h".
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/..")
  target_link_libraries(${name} PRIVATE gradwire::gradwire absl::flags absl::flags_parse absl::flags_usage)
endfunction()

set(dataset data/dataset.cc "${CMAKE_CURRENT_BINARY_DIR}/digits_csv.cc")
example(parameter_server parameter_server/parameter_server.cc parameter_server/network.cc
        parameter_server/trainer.cc worker_report.cc ${dataset})
example(remote_pipeline remote_pipeline/remote_pipeline.cc remote_pipeline/shards.cc ${dataset})
example(data_parallel data_parallel/data_parallel.cc data_parallel/agreement.cc ${dataset})
example(hybrid data_parallel/hybrid/hybrid.cc data_parallel/agreement.cc ${dataset})
example(batch_parameter_server batch_rpc/parameter_server.cc ${dataset})
example(reinforce batch_rpc/reinforce.cc)
example(reinforcement_learning reinforcement_learning/reinforcement_learning.cc)
example(rnn rnn/rnn.cc)
