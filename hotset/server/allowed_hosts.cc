#include "hotset/server/allowed_hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace hotset::server {
namespace {

bool is_port(std::string_view text) {
  return text.size() <= 5 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_ip(int family, const std::string& text) {
  in6_addr address = {};  // the larger one
  return inet_pton(family, text.c_str(), &address) == 1;
}

// As URLs have names, but without escapes, which nobody needs for a host.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 255 && std::ranges::all_of(text, [](unsigned char c) {
    return (std::isalnum(c) != 0 && c < 0x80) || c == '-' || c == '.' || c == '_';
  });
}

}  // namespace

std::optional<std::string> host_of_authority(std::string_view authority) {
  std::string_view host = authority;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = authority.substr(1, end - 1);
    const std::string_view port = authority.substr(end + 1);
    if (!port.empty() && (port.front() != ':' || !is_port(port.substr(1)))) return std::nullopt;
    if (host.contains('\0') || !is_ip(AF_INET6, std::string(host))) return std::nullopt;
  } else {
    if (const size_t colon = authority.find(':'); colon != std::string_view::npos) {
      if (!is_port(authority.substr(colon + 1))) return std::nullopt;
      host = authority.substr(0, colon);
    }
    if (!is_name(host)) return std::nullopt;
  }
  std::string result(host);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (result.size() > 1 && result.ends_with('.')) result.pop_back();
  return result;
}

bool is_address(std::string_view host) {
  const std::string text(host);
  return text.size() == host.size() && (is_ip(AF_INET, text) || is_ip(AF_INET6, text));
}

AllowedHosts::AllowedHosts(std::vector<std::string> names) {
  for (const std::string& name : names) {
    if (name == "*") allows_all_ = true;
    if (auto host = host_of_authority(name)) names_.push_back(*std::move(host));
  }
}

bool AllowedHosts::allow(std::string_view authority) const {
  if (allows_all_) return true;
  const auto host = host_of_authority(authority);
  return host &&
         (*host == "localhost" || is_address(*host) || std::ranges::contains(names_, *host));
}

}  // namespace hotset::server
