#include "hotset/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hotset/model/file_mapping.h"

namespace hotset::model {
namespace {

// Closes on every way out but the one that takes it.
struct FileDescriptor {
  int fd;
  int take() { return std::exchange(fd, -1); }
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
};

std::unexpected<Error> system_error(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  return make_error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot {}: {}",
                    path.string(), what, std::strerror(error));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return system_error(path, "open");
  struct stat info{};
  if (fstat(file.fd, &info) != 0) return system_error(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected a regular file",
                      path.string(), S_ISDIR(info.st_mode) ? "a directory" : "a special file");
  }
  if (info.st_size == 0) {
    return make_error(ErrorCode::kCorrupt, "{}: the file is empty", path.string());
  }
  const auto n_bytes = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) return system_error(path, "map");
  return MappedFile(path, {static_cast<const uint8_t*>(address), n_bytes},
                    enter_mapping(address, n_bytes, file.take()));
}

MappedFile::MappedFile(std::filesystem::path path, std::span<const uint8_t> bytes, Mapping* mapping)
    : path_(std::move(path)), bytes_(bytes), mapping_(mapping) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
    mapping_ = std::exchange(other.mapping_, nullptr);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (mapping_ == nullptr) return;
  const int fd = mapping_->fd;
  leave_mapping(std::exchange(mapping_, nullptr));
  munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  close(fd);
  bytes_ = {};
}

Status MappedFile::check() const {
  if (mapping_ == nullptr) return {};
  switch (check_mapping(*mapping_)) {
    case MappingState::kGood:
      return {};
    case MappingState::kCut:
      return make_error(ErrorCode::kIo,
                        "{}: found {} bytes, expected {}: the file was cut while it was in use",
                        path_.string(), mapping_->n_bytes_left, bytes_.size());
    case MappingState::kUnreadable:
      break;
  }
  const uintptr_t byte = mapping_->lost_begin - mapping_->begin;
  return make_error(ErrorCode::kIo, "{}: cannot read at byte {} or behind it: {}", path_.string(),
                    byte, std::strerror(EIO));
}

void MappedFile::advise_sequential() const {
  madvise(const_cast<uint8_t*>(bytes_.data()), bytes_.size(), MADV_SEQUENTIAL);
}

void MappedFile::advise_random() const {
  madvise(const_cast<uint8_t*>(bytes_.data()), bytes_.size(), MADV_RANDOM);
}

}  // namespace hotset::model
