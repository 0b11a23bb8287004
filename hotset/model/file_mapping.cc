#include "hotset/model/file_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <mutex>

#include "hotset/base/error.h"

namespace hotset::model {
namespace {

static_assert(std::atomic<uintptr_t>::is_always_lock_free);

std::atomic<Mapping*> first_mapping = nullptr;
struct sigaction action_before = {};

size_t page_bytes() {
  static const auto n = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return n;
}

template <typename T, typename Better>
void improve(std::atomic<T>& value, T candidate, Better better) {
  T now = value.load();
  while (better(candidate, now) && !value.compare_exchange_weak(now, candidate)) {
  }
}

bool map_over(uintptr_t begin, uintptr_t end, int flags, int fd, off_t offset) {
  if (begin >= end) return true;
  return mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ, flags | MAP_FIXED, fd,
              offset) != MAP_FAILED;
}

// Whether the fault was met: the read that is tried again gives zeros.
bool give_zeros(uintptr_t address) {
  for (Mapping* m = first_mapping.load(); m != nullptr; m = m->next) {
    const uintptr_t begin = m->begin.load();
    const uintptr_t end = m->end.load();
    if (begin == Mapping::kNowhere || address < begin || address >= end) continue;
    const uintptr_t page = address - address % page_bytes();
    // Of a file that was cut all that follows is lost too, and one call is enough for it.
    struct stat info{};
    const bool is_cut = fstat(m->fd.load(), &info) == 0 &&
                        page - begin >= static_cast<uintptr_t>(std::max<off_t>(0, info.st_size));
    const uintptr_t page_end = is_cut ? end : page + page_bytes();
    improve(m->lost_begin, page, std::less<>());
    improve(m->lost_end, page_end, std::greater<>());
    m->n_faults.fetch_add(1);
    return map_over(page, page_end, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  return false;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int error = errno;
  if (give_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  if ((action_before.sa_flags & SA_SIGINFO) != 0)
    return action_before.sa_sigaction(number, info, context);
  if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN) {
    return action_before.sa_handler(number);
  }
  // The read is tried again, and ends the process as it would have without this.
  sigaction(number, &action_before, nullptr);
}

void take_over_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  page_bytes();  // not for the first time in a handler
  HOTSET_CHECK(sigaction(SIGBUS, &action, &action_before) == 0);
}

Mapping* free_mapping() {
  for (Mapping* m = first_mapping.load(); m != nullptr; m = m->next) {
    bool taken = false;
    if (m->is_taken.compare_exchange_strong(taken, true)) return m;
  }
  auto* made = new Mapping;
  made->is_taken = true;
  made->next = first_mapping.load();
  while (!first_mapping.compare_exchange_weak(made->next, made)) {
  }
  return made;
}

// Makes every read of these pages fail, for good: a file without bytes has no pages.
bool make_unreadable(uintptr_t begin, uintptr_t end) {
  static const int empty = memfd_create("hotset-lost", MFD_CLOEXEC);
  return empty >= 0 && map_over(begin, end, MAP_SHARED, empty, 0);
}

}  // namespace

Mapping* enter_mapping(const void* address, size_t n_bytes, int fd) {
  static std::once_flag once;
  std::call_once(once, take_over_bus_errors);
  Mapping* m = free_mapping();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  m->fd = fd;
  m->lost_begin = Mapping::kNowhere;
  m->lost_end = 0;
  m->n_faults = 0;
  m->n_seen = 0;
  m->n_bytes = n_bytes;
  m->n_bytes_left = n_bytes;
  m->is_beyond_repair = false;
  m->end = begin + (n_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  m->begin = begin;
  return m;
}

void leave_mapping(Mapping* mapping) {
  mapping->begin = Mapping::kNowhere;
  mapping->is_taken = false;
}

MappingState check_mapping(Mapping& m) {
  const uint64_t n_faults = m.n_faults.load();
  struct stat info{};
  size_t n_bytes = m.n_bytes_left;
  if (fstat(m.fd.load(), &info) == 0) {
    n_bytes = std::min(n_bytes, static_cast<size_t>(std::max<off_t>(0, info.st_size)));
  }
  const bool is_new = n_faults != m.n_seen || n_bytes < m.n_bytes_left || m.is_beyond_repair;
  if (!is_new) return MappingState::kGood;
  m.n_seen = n_faults;
  m.n_bytes_left = n_bytes;
  const uintptr_t begin = m.begin.load();
  const uintptr_t end = m.end.load();
  // Of the page in which the file ends now, what is behind the end reads as zeros without a fault.
  const uintptr_t cut = n_bytes < m.n_bytes ? begin + n_bytes / page_bytes() * page_bytes() : end;
  // What could not be read may be readable now: then it is right.
  const uintptr_t lost_begin = m.lost_begin.load();
  const uintptr_t lost_end = std::min(m.lost_end.load(), cut);
  const bool again =
      lost_begin == Mapping::kNowhere || map_over(lost_begin, lost_end, MAP_SHARED, m.fd.load(),
                                                  static_cast<off_t>(lost_begin - begin));
  if (!again || (cut < end && !make_unreadable(cut, end))) m.is_beyond_repair = true;
  return n_bytes < m.n_bytes ? MappingState::kCut : MappingState::kUnreadable;
}

}  // namespace hotset::model
