// What a client may take of the server's threads and memory.
// Thread-compatible: a plain value.
#ifndef HOTSET_SERVER_HTTP_LIMITS_H_
#define HOTSET_SERVER_HTTP_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace hotset::server {

struct HttpLimits {
  int32_t max_connections = 512;     // at once
  size_t max_body_bytes = 64 << 20;  // of a request
  double header_s = 15;              // for the whole header of a request
  double idle_s = 30;                // between two requests of a connection
  double read_gap_s = 15;            // between two pieces of a body
  double body_s = 300;               // for a whole body
  double write_gap_s = 15;           // until a client takes something of what is sent
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_HTTP_LIMITS_H_
