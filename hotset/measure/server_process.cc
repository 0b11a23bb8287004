#include "hotset/measure/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "hotset/base/clock.h"

namespace hotset::measure {
namespace {

constexpr int64_t kMostLogBytes = 64 << 10;
constexpr unsigned kPollUs = 20'000;

}  // namespace

Result<ServerProcess> ServerProcess::start(
    const std::vector<std::string>& command,
    const std::vector<std::pair<std::string, std::string>>& environment,
    const std::string& log_path) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool is_replaced = std::ranges::any_of(
        environment, [&](const auto& added) { return text.starts_with(added.first + "="); });
    if (!is_replaced) variables.emplace_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  // The C interface takes mutable strings, which it does not change.
  const auto pointers = [](const std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  };
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  // A group of its own: Ctrl-C is for hotset, which then ends it. Signals as usual.
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int signal_number : {SIGPIPE, SIGXFSZ, SIGINT}) sigaddset(&defaults, signal_number);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command.front().c_str(), &actions, &attributes,
                                 pointers(command).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return make_error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot be started: {}", command.front(), std::strerror(error));
  }
  return ServerProcess(pid, log_path);
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) (void)stop(0);
}

bool ServerProcess::is_running() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

Status ServerProcess::stop(int timeout_s) {
  if (!is_running()) return {};
  kill(pid_, SIGTERM);
  const double deadline_us = steady_clock().now_us() + timeout_s * 1e6;
  while (is_running()) {
    if (steady_clock().now_us() < deadline_us) {
      usleep(kPollUs);
      continue;
    }
    kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return make_error(ErrorCode::kIo, "the server did not end within {} s of SIGTERM", timeout_s);
  }
  return {};
}

std::string ServerProcess::log() const {
  std::ifstream file(log_path_, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t begin = std::max<int64_t>(0, size - kMostLogBytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n_bytes = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound = bind(fd, generic, n_bytes) == 0 && getsockname(fd, generic, &n_bytes) == 0;
  close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace hotset::measure
