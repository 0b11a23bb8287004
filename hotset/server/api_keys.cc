#include "hotset/server/api_keys.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>

namespace hotset::server {
namespace {

bool equal(std::string_view given, std::string_view key) {
  // Not one loop that ends at the first difference, nor one that the compiler makes such.
  volatile unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char k = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | (given[i] ^ k));
  }
  return difference == 0;
}

// Bytes of a base64 text; what is no base64 is passed over.
std::string from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<uint32_t>(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      value = static_cast<uint32_t>(c - '0') + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      continue;
    }
    bits = bits << 6 | value;
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes += static_cast<char>(bits >> n_bits & 0xFF);
  }
  return bytes;
}

// What follows a scheme, whatever its case; empty: another scheme.
std::string_view behind(std::string_view header, std::string_view scheme) {
  if (header.size() <= scheme.size() || header[scheme.size()] != ' ') return {};
  for (size_t i = 0; i < scheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(header[i])) != scheme[i]) return {};
  }
  header.remove_prefix(scheme.size());
  const size_t begin = header.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : header.substr(begin);
}

}  // namespace

bool ApiKeys::accept(std::string_view key) const {
  bool found = false;
  // All of them, whichever it is.
  for (const std::string& known : keys_) found = equal(key, known) | found;
  return found;
}

bool ApiKeys::accept_headers(std::string_view authorization, std::string_view x_api_key) const {
  if (!x_api_key.empty() && accept(x_api_key)) return true;
  if (const std::string_view key = behind(authorization, "bearer"); !key.empty()) {
    return accept(key);
  }
  const std::string pair = from_base64(behind(authorization, "basic"));
  const size_t colon = pair.find(':');
  return colon != std::string::npos && accept(std::string_view(pair).substr(colon + 1));
}

}  // namespace hotset::server
