#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/transport/message.h"
#include "gradwire/transport/ucx/ucx_frame.h"

namespace gradwire::transport {

class UcxConnection;

// A message on its way out, and what UCX reads of it until it has told that each piece has left. Stays where it is from
// then on.
struct UcxOutgoing {
  struct Piece {
    UcxOutgoing* message = nullptr;
    std::array<char, UcxHead::kBytes> head = {};
    Buffer buffer;
  };

  UcxConnection* connection = nullptr;
  // Through which it was handed to UCX.
  ucp_ep_h endpoint = nullptr;
  std::string frame;
  Piece frame_piece;
  // The buffers that travel by themselves.
  std::vector<Piece> buffers;
  // What it counts for.
  std::size_t bytes = 0;
  // Which have not left; one more while they are being handed over.
  std::size_t pieces_left = 0;
};

}  // namespace gradwire::transport
