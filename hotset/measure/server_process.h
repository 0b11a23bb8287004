// A program that is started, watched and ended.
// Thread-compatible. The process ends with the object.
#ifndef HOTSET_MEASURE_SERVER_PROCESS_H_
#define HOTSET_MEASURE_SERVER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::measure {

class ServerProcess {
 public:
  // Output of both kinds goes to `log_path`. `environment` is added to this process's.
  // Errors: kNotFound (the program), kIo.
  static Result<ServerProcess> start(
      const std::vector<std::string>& command,
      const std::vector<std::pair<std::string, std::string>>& environment,
      const std::string& log_path);

  ServerProcess(ServerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), log_path_(std::move(other.log_path_)) {}
  ServerProcess& operator=(ServerProcess&&) = delete;
  ~ServerProcess();

  bool is_running();
  // Asks it to end (SIGTERM), and ends it (SIGKILL) if it has not after so long.
  // Errors: kIo, it had to be killed.
  Status stop(int timeout_s);
  // What it wrote, at most the last 64 KiB.
  std::string log() const;

 private:
  ServerProcess(pid_t pid, std::string log_path) : pid_(pid), log_path_(std::move(log_path)) {}

  pid_t pid_;  // -1: ended
  std::string log_path_;
};

// A TCP port that is free now on 127.0.0.1; 0 if there is none.
int free_port();

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_SERVER_PROCESS_H_
