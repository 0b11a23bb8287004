#include "hotset/server/request_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "hotset/server/allowed_hosts.h"

namespace hotset::server {
namespace {

using testing::HasSubstr;
using testing::Not;

// Status of what is refused, 0 of what is a head.
int status_of(const std::string& bytes) {
  const auto end = find_head_end(bytes);
  if (!end) return end.error().status;
  if (!*end) return -1;  // it goes on
  const auto head = parse_request_head(std::string_view(bytes).substr(0, **end));
  return head ? 0 : head.error().status;
}

std::string get(const std::string& target, const std::string& fields = "Host: localhost\r\n",
                const std::string& version = "HTTP/1.1") {
  return "GET " + target + " " + version + "\r\n" + fields + "\r\n";
}

RequestHead parsed(const std::string& bytes) {
  auto head = parse_request_head(bytes);
  EXPECT_TRUE(head) << bytes << (head ? "" : head.error().message);
  return head ? *head : RequestHead();
}

TEST(RequestHead, EndsAtTheEmptyLine) {
  const std::string head = get("/health");
  for (size_t n = 1; n < head.size(); ++n) {
    // Byte by byte, and in two pieces.
    const auto end = find_head_end(std::string_view(head).substr(0, n), n - 1);
    ASSERT_TRUE(end);
    EXPECT_EQ(*end, std::nullopt) << n;
    EXPECT_EQ(find_head_end(head + "{}", n), head.size()) << n;
  }
}

TEST(RequestHead, WhatIsNoHttpShowsAtOnce) {
  EXPECT_EQ(status_of("GET /health HTTP/1.1\n"), 400);
  EXPECT_EQ(status_of("\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nX: a\rb"), 400);
  EXPECT_EQ(status_of(std::string("GET /\0", 6)), 400);
  EXPECT_EQ(status_of("\x80"), 400);
  const auto tls = find_head_end("\x16\x03\x01");
  ASSERT_FALSE(tls);
  EXPECT_THAT(tls.error().message, HasSubstr("TLS"));
  // A byte may be half of the end of a line.
  EXPECT_EQ(status_of("GET / HTTP/1.1\r"), -1);
  const std::string broken = "GET / HTTP/1.1\rX";
  EXPECT_FALSE(find_head_end(broken, broken.size() - 1));
}

TEST(RequestHead, IsBounded) {
  EXPECT_EQ(status_of("GET /" + std::string(kMaxHeadBytes, 'a')), 414);
  EXPECT_EQ(status_of(get("/" + std::string(kMaxTargetBytes, 'a'))), 414);
  EXPECT_EQ(status_of(get("/" + std::string(kMaxTargetBytes - 1, 'a'))), 0);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nX: " + std::string(kMaxHeadBytes, 'a')), 431);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nX: " + std::string(kMaxFieldBytes, 'a') + "\r\n")), 431);
  std::string fields = "Host: a\r\n";
  for (size_t i = 1; i < kMaxFields; ++i) fields += "X: a\r\n";
  EXPECT_EQ(status_of(get("/", fields)), 0);
  EXPECT_EQ(status_of(get("/", fields + "X: a\r\n")), 431);
}

TEST(RequestHead, RequestLines) {
  EXPECT_EQ(status_of("GET /\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("G(T / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\n", "http/1.1")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\n", "HTTP/2.0")), 505);
  EXPECT_EQ(status_of("PRI * HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status_of("BREW / HTTP/1.1\r\nHost: a\r\n\r\n"), 501);
  EXPECT_EQ(status_of(get("health")), 400);
  EXPECT_EQ(status_of(get("*")), 400);
  EXPECT_EQ(parsed("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").authority, "a");
}

TEST(RequestHead, Fields) {
  const RequestHead head =
      parsed(get("/", "HOST:LocalHost:80\r\nx-Api-Key: \t a%20b \t\r\nE:\r\n"));
  EXPECT_EQ(head.authority, "localhost:80");
  EXPECT_EQ(head.field("x-api-key"), "a%20b");
  EXPECT_EQ(head.field("e"), "");
  EXPECT_EQ(status_of(get("/", "Host: a\r\nX : a\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nX: a\r\n b\r\n")), 400);
  EXPECT_EQ(status_of(get("/", " Host: a\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nnonsense\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\n: a\r\n")), 400);
}

TEST(RequestHead, OneHost) {
  EXPECT_EQ(status_of(get("/", "")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nHost: a\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a b\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: http://a\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: me@a\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "Host: a, b\r\n")), 400);
  EXPECT_EQ(status_of(get("/", "", "HTTP/1.0")), 0);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nHost: a\r\n", "HTTP/1.0")), 400);
  EXPECT_EQ(parsed(get("/", "Host:\r\n")).authority, "");
}

TEST(RequestHead, AbsoluteTargetsSayTheHost) {
  for (const std::string target : {"http://LOCALHOST:8080", "https://localhost:8080/"}) {
    const RequestHead head = parsed(get(target, "Host: evil.example\r\n"));
    EXPECT_EQ(head.authority, "localhost:8080");
    EXPECT_EQ(head.target, "/");
    EXPECT_THAT(head_for_library(head), HasSubstr("Host: localhost:8080\r\n"));
    EXPECT_THAT(head_for_library(head), Not(HasSubstr("evil")));
  }
  EXPECT_EQ(parsed(get("http://a/b?c=http://d")).target, "/b?c=http://d");
  EXPECT_EQ(parsed(get("HTTP://a?b")).target, "/?b");
  for (const std::string target : {"http://", "http:///health", "ftp://a/", "http://me@a/"}) {
    EXPECT_EQ(status_of(get(target)), 400) << target;
  }
}

TEST(RequestHead, SaysOnceHowLongTheBodyIs) {
  const auto post = [](const std::string& fields, const std::string& version = "HTTP/1.1") {
    return "POST /tokenize " + version + "\r\nHost: a\r\n" + fields + "\r\n";
  };
  EXPECT_EQ(parsed(post("Content-Length: 12\r\n")).content_length, 12);
  EXPECT_EQ(parsed(post("")).content_length, std::nullopt);
  for (const std::string length : {"", "-2", "+2", "2 2", "2,2", "0x2", "18446744073709551616"}) {
    EXPECT_EQ(status_of(post("Content-Length: " + length + "\r\n")), 400) << length;
  }
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nContent-Length: 2\r\n")), 400);
  for (const std::string coding : {"chunked", "Chunked", "CHUNKED"}) {
    const RequestHead head = parsed(post("Transfer-Encoding: " + coding + "\r\n"));
    EXPECT_TRUE(head.is_chunked);
    EXPECT_THAT(head_for_library(head), HasSubstr("Transfer-Encoding: chunked\r\n"));
  }
  for (const std::string coding : {"gzip", "gzip, chunked", "chunked, chunked", "identity", ""}) {
    EXPECT_EQ(status_of(post("Transfer-Encoding: " + coding + "\r\n")), 400) << coding;
  }
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "HTTP/1.0")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n")), 400);
}

TEST(RequestHead, WhatTheLibraryMustNotSee) {
  const RequestHead head = parsed(
      "POST / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-3\r\nExpect: 100-Continue\r\nCookie: x\r\n"
      "Content-Length: 2\r\nConnection: keep-alive, Close\r\nContent-Type: text/plain\r\n\r\n");
  EXPECT_TRUE(head.expects_continue);
  EXPECT_TRUE(head.closes);
  EXPECT_EQ(head_for_library(head),
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n"
            "Connection: close\r\n\r\n");
  EXPECT_EQ(status_of(get("/", "Host: a\r\nExpect: tea\r\n")), 417);
  EXPECT_FALSE(parsed(get("/", "Host: a\r\nExpect: 100-continue\r\n")).expects_continue);
  EXPECT_TRUE(parsed(get("/", "", "HTTP/1.0")).closes);
  EXPECT_FALSE(parsed(get("/")).closes);
}

TEST(AllowedHosts, HostsOfAuthorities) {
  EXPECT_EQ(host_of_authority("Box.Example.:8080"), "box.example");
  EXPECT_EQ(host_of_authority("box:"), "box");
  EXPECT_EQ(host_of_authority("[::1]:80"), "::1");
  EXPECT_EQ(host_of_authority("[FE80::1]"), "fe80::1");
  for (const std::string_view text : {"", ":80", "a:b", "a:123456", "::1", "[::1", "[::1]80", "[a]",
                                      "[127.0.0.1]", "a/b", "a b", "a@b", "a:80:80", "\xc3\xa4"}) {
    EXPECT_EQ(host_of_authority(text), std::nullopt) << text;
  }
}

TEST(AllowedHosts, AddressesLocalhostAndNames) {
  const AllowedHosts hosts({"Box.example", "other"});
  for (const std::string_view good :
       {"localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:8080", "192.168.1.7", "[::1]:8080",
        "[fd00::7]", "box.EXAMPLE:99", "other."}) {
    EXPECT_TRUE(hosts.allow(good)) << good;
  }
  for (const std::string_view bad :
       {"", "evil.example", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example",
        "127.1", "0x7f000001", "2130706433", "box.example.evil", "abox.example"}) {
    EXPECT_FALSE(hosts.allow(bad)) << bad;
  }
  EXPECT_FALSE(hosts.allow(std::string_view("127.0.0.1\0", 10)));
  EXPECT_TRUE(AllowedHosts({"*"}).allow("evil.example"));
}

}  // namespace
}  // namespace hotset::server
