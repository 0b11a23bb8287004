// API keys, compared in a time that does not tell how much of a key was right.
// Thread-safe: constant after creation.
#ifndef HOTSET_SERVER_API_KEYS_H_
#define HOTSET_SERVER_API_KEYS_H_

#include <string>
#include <string_view>
#include <vector>

namespace hotset::server {

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool needed() const { return !keys_.empty(); }
  // Whether `key` is one of them. The time depends on the lengths only.
  bool accept(std::string_view key) const;
  // As accept(), of the headers Authorization ("Bearer KEY", or "Basic" with the key as password)
  // and X-Api-Key; empty: absent.
  bool accept_headers(std::string_view authorization, std::string_view x_api_key) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_API_KEYS_H_
