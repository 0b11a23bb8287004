// Which hosts a request may be for. A page from elsewhere can let its own name mean this machine
// (DNS rebinding); then the browser takes the server for the page's own, and only the Host header
// tells. Thread-safe: constant after creation.
#ifndef HOTSET_SERVER_ALLOWED_HOSTS_H_
#define HOTSET_SERVER_ALLOWED_HOSTS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::server {

// The host of "host:port" (the port may be absent or empty), in lower case, without the brackets of
// an IPv6 address and the dot that may end a name; nothing if it is none.
std::optional<std::string> host_of_authority(std::string_view authority);

// Whether `host` is an IP address written as one, which no DNS server can make another's.
bool is_address(std::string_view host);

class AllowedHosts {
 public:
  // Requires: each name is a host (host_of_authority()) or "*", which allows all.
  explicit AllowedHosts(std::vector<std::string> names);

  // Whether a request for "host:port" may be answered, whatever the port, which forwarding changes:
  // localhost, an IP address, or one of the names.
  bool allow(std::string_view authority) const;

 private:
  std::vector<std::string> names_;
  bool allows_all_ = false;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_ALLOWED_HOSTS_H_
